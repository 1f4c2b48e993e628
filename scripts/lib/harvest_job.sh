# shellcheck shell=bash
# Harvest and report as a job of one node that begins when this one has ended: the other nodes are free at once.

[[ -n ${_RLPROF_HARVEST_JOB_LOADED-} ]] && return 0
readonly _RLPROF_HARVEST_JOB_LOADED=1

# Whether this job's knobs ask for it. RLPROF_HARVEST_JOB=auto: where more than one node would wait for it.
harvest_job::is_wanted() {
    (( RLPROF_HARVEST_SECONDS )) || return 1
    case "${RLPROF_HARVEST_JOB}" in
        0) return 1 ;;
        1) return 0 ;;
        *) (( ${SLURM_JOB_NUM_NODES:-1} > 1 )) ;;
    esac
}

# Submit it and print its number; `harvest_job.json` of the run folder names it until it is over. Where sbatch refuses:
# its words on stderr, and the exit code says so.
harvest_job::submit() {
    local -r home="$1" run_folder="$2"
    local -a options=() variables=()
    local number

    harvest_job::_options "${run_folder}"
    slurm::_split RLPROF_HARVEST_ARGS
    options+=(${WORDS[@]+"${WORDS[@]}"})
    harvest_job::_variables
    # A controller that does not answer must not hold the nodes.
    number="$(timeout --kill-after=2 20 env -i "${variables[@]}" "RLPROF_HOME=${home}" "RLPROF_RUN_DIR=${run_folder}" \
        sbatch --parsable "${options[@]}" "${home}/scripts/harvest.sh" "${run_folder}")" || return 1
    # A site's sbatch may say more, before and after.
    number="$(sed -nE 's/^([0-9]+)(;.*)?$/\1/p' <<< "${number}" | tail -n 1)"
    [[ -n ${number} ]] || return 1
    # Before the job can begin: it waits for this one.
    printf '{"job": "%s", "submitted_ns": %s}\n' "${number}" "$(date +%s%N)" > "${run_folder}/.harvest_job.json.tmp" \
        && mv -- "${run_folder}/.harvest_job.json.tmp" "${run_folder}/harvest_job.json"
    printf '%s\n' "${number}"
}

# Fill `options` with sbatch's: of the same account, partition, QOS and reservation as this job, without GPUs. A row of a
# cluster's own words after these wins.
harvest_job::_options() {
    local -r run_folder="$1"
    local cpus="${SLURM_CPUS_ON_NODE:-1}"

    (( cpus <= 4 )) || cpus=4
    options=("--dependency=afterany:$(slurm::_alone)" --nodes=1 --ntasks=1 "--cpus-per-task=${cpus}" --job-name=rlprof-harvest
        "--time=$(( (RLPROF_HARVEST_SECONDS + RLPROF_REPORT_SECONDS) / 60 + 10 ))" --export=ALL --no-requeue
        "--chdir=${run_folder}" "--output=${run_folder}/logs/harvest.log" --open-mode=append)
    [[ -z ${SLURM_JOB_ACCOUNT-} ]] || options+=("--account=${SLURM_JOB_ACCOUNT}")
    [[ -z ${SLURM_JOB_PARTITION-} ]] || options+=("--partition=${SLURM_JOB_PARTITION}")
    [[ -z ${SLURM_JOB_QOS-} ]] || options+=("--qos=${SLURM_JOB_QOS}")
    [[ -z ${SLURM_JOB_RESERVATION-} ]] || options+=("--reservation=${SLURM_JOB_RESERVATION}")
}

# Fill `variables` with what that job needs of this one's: nothing of Slurm's, which sbatch and srun would take for wishes,
# and nothing of the user's, which may hold secrets.
harvest_job::_variables() {
    local name

    variables=()
    while IFS= read -r name; do
        case "${name}" in
            RLPROF_REQUEST_JSON | RLPROF_SRUN_ARGS | RLPROF_SBATCH_ARGS) continue ;;
            RLPROF_* | CONTAINER | MOUNTS | UV_CACHE_DIR_OVERRIDE | ENROOT_* | APPTAINER_* | SINGULARITY_*) ;;
            HOME | USER | LOGNAME | SHELL | PATH | LANG | LANGUAGE | LC_* | TZ | LD_LIBRARY_PATH | PYTHONPATH | XDG_*) ;;
            SLURM_CONF | SLURM_CONF_SERVER | SLURM_CLUSTERS) ;;
            *) continue ;;
        esac
        variables+=("${name}=${!name}")
    done < <(compgen -e)
}

# Whether there is what a report explains: captures, or steps that the recorder has seen.
harvest_job::has_something() {
    local -r run_folder="$1"

    compgen -G "${run_folder}/profiles/*/*/*/*" > /dev/null \
        || grep -qs '"history":{"steps":\[\[' "${run_folder}/recorder/summary.json"
}
