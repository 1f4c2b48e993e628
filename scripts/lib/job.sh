# shellcheck shell=bash
# The batch script's work: check, make the run folder, start the nodes, pass signals on, give the exit code.

[[ -n ${_RLPROF_JOB_LOADED-} ]] && return 0
readonly _RLPROF_JOB_LOADED=1
readonly _RLPROF_STORAGE_SECONDS=15  # for one look at the run folder
readonly _RLPROF_EARLIER_SECONDS=120  # for the manifests of all attempts that left none
readonly _RLPROF_REMOVE_SECONDS=60  # for a node's containers
readonly _RLPROF_MOST_WORDS=64  # lines of all nodes' daemons that are kept for the reason of an end
EARLIER_FOLDERS=()  # by number: run folders of attempts of this job before a requeue
ORDERED=""  # the exit code of an order to end that came before a node was started
RUN_FOLDER="${RLPROF_RUN_DIR-}"  # by which this script writes there; `job::_hold` takes the name's place

# Find mistakes before a node is touched. With a container the head's supervisor does it, where there is a Python.
job::preflight() {
    local python="${RLPROF_PYTHON:-python3}"

    # Slurm gives each component an allocation of its own, and this script runs in the first alone.
    (( ${SLURM_HET_SIZE:-0} < 2 )) \
        || common::fail 2 "a heterogeneous job of ${SLURM_HET_SIZE} components: one Ray cluster spans one allocation, and only the first" \
            "component's nodes would join. Submit one allocation; RLPROF_RAY_RESOURCES or DEDICATED_RAY_HEAD tell nodes apart."
    case "$(slurm::container_runtime)" in "" | none) ;; *) return 0 ;; esac
    if [[ -n ${RLPROF_VENV} ]]; then
        [[ -x ${RLPROF_VENV}/bin/python ]] \
            || common::fail 2 "RLPROF_VENV=${RLPROF_VENV}: no bin/python there. Give the folder of a virtual environment."
        python="${RLPROF_PYTHON:-${RLPROF_VENV}/bin/python}"
    fi
    command -v -- "${python}" > /dev/null \
        || common::fail 2 "RLPROF_PYTHON=${python}: no such interpreter on $(hostname). Set RLPROF_VENV or RLPROF_PYTHON."
    PYTHONPATH="${RLPROF_HOME}/python${PYTHONPATH:+:${PYTHONPATH}}" "${python}" -m rlprof_ops.submit.preflight || exit "$?"
}

# <BASE_LOG_DIR>/<job>-logs with the job's token, which no other user may read. The folder is made here and never used
# again: where everybody may write, somebody else can have made it first, and two clusters can number their jobs alike.
job::run_folder() {
    local restart="${SLURM_RESTART_COUNT:-0}" base

    RLPROF_JOB="$(job::_attempt "${restart}")"
    export RLPROF_JOB
    base="$(job::_base)"
    export RLPROF_RUN_DIR="${base}/${RLPROF_JOB}-logs"
    job::_make "${base}" || common::fail 1 "BASE_LOG_DIR: the run folder ${RLPROF_RUN_DIR} cannot be made: $(job::_why_not "${base}"). Nothing in it was touched."
    job::_find_earlier "${base}" "${restart}"
    _RLPROF_RUN_IDENTITY="$(stat -L -c "%u %i" -- "${RUN_FOLDER}")"
    common::log "run folder: ${RLPROF_RUN_DIR}"
    slurm::record_run_folder "${RLPROF_RUN_DIR}"
    job::_remember
}

# `4711`, and `4711.r1` after its first requeue.
job::_attempt() {
    local -r number="$1"

    if [[ ${number} == 0 ]]; then printf '%s' "${SLURM_JOB_ID}"; else printf '%s.r%s' "${SLURM_JOB_ID}" "${number}"; fi
}

# Those that somebody else could have made or changed say nothing.
job::_find_earlier() {
    local -r base="$1" restart="$2"
    local number folder

    for (( number = 0; number < restart; number++ )); do
        folder="${base}/$(job::_attempt "${number}")-logs"
        if [[ -e ${folder}/run.json ]] && job::_is_ours "${folder}" 022; then
            EARLIER_FOLDERS[number]="${folder}"
        fi
    done
}

# Tell supervisors which earlier attempts have a manifest: what it calls whole is not taken again. It is made now where an
# attempt was killed before, where it was made while that one ran, or where the job that was to make it waits for this one's
# end. An order to end cuts it short.
job::earlier_attempts() {
    local -r until="$(( SECONDS + _RLPROF_EARLIER_SECONDS ))"
    local number folder harvest=""
    local -a known=()

    trap 'job::_order TERM 143' TERM
    trap 'job::_order USR2 140' USR2
    for number in ${EARLIER_FOLDERS[@]+"${!EARLIER_FOLDERS[@]}"}; do
        folder="${EARLIER_FOLDERS[number]}"
        if [[ -z ${ORDERED} ]] && (( SECONDS < until )) && ! job::_is_final "${folder}"; then
            job::_harvest "$(( until - SECONDS + 1 ))" "${folder}" >> "${RUN_FOLDER}/logs/harvest.log" 2>&1 &
            harvest="$!"
            wait "${harvest}" || true
            harvest=""
        fi
        if job::_is_final "${folder}"; then
            known+=("${number}")
            common::log "not taken again: what ${folder}/manifest.json calls whole"
        else
            common::log "${folder} has no manifest of its end, and none could be made (logs/harvest.log): what that attempt took is asked again"
        fi
    done
    export RLPROF_EARLIER_ATTEMPTS="${known[*]-}"
}

# Whether a run folder has a manifest that was not made while its job ran.
job::_is_final() {
    local -r folder="$1"

    [[ -e ${folder}/manifest.json ]] && ! grep -qs -m 1 '^"running": true,$' -- "${folder}/manifest.json"
}

# Keep an order to end for `job::run`, which starts no node then, and end what runs meanwhile.
job::_order() {
    local -r signal="$1"

    ORDERED="${ORDERED:-$2}"
    common::log "got ${signal}: no node is started"
    # shellcheck disable=SC2046 # pids
    [[ -z ${harvest-} ]] || kill $(cat "/proc/${harvest}/task/${harvest}/children" 2> /dev/null) 2> /dev/null || true
}

# Before `||` bash ignores errexit, so each command says itself that it must not fail.
job::_make() {
    local -r base="$1"

    (
        common::umask 027
        mkdir -p -- "${base}" || exit 1
        job::_mkdir "${RLPROF_RUN_DIR}" 2> /dev/null || job::_is_prepared "${RLPROF_RUN_DIR}"
    ) || return 1
    job::_hold "${RLPROF_RUN_DIR}" || return 1
    (
        common::umask 027
        job::_mkdir "${RUN_FOLDER}/logs" || exit 1
        common::umask 077
        [[ -d ${RUN_FOLDER}/.secrets ]] || job::_mkdir "${RUN_FOLDER}/.secrets" || exit 1
        job::_mkdir "${RUN_FOLDER}/control" || exit 1
        set -o noclobber
        : > "${RUN_FOLDER}/.secrets/ray_token" || exit 1
        chmod 600 -- "${RUN_FOLDER}/.secrets/ray_token" 2> /dev/null || true # who reads it checks
        head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n' >> "${RUN_FOLDER}/.secrets/ray_token"
    )
}

# A folder of ours with what the umask leaves, also where the folder above has a default ACL, which takes the umask's place.
job::_mkdir() {
    mkdir -m "$(printf '%03o' "$(( 8#777 & ~8#$(umask) ))")" -- "$1"
}

# Hold the run folder open, and set RUN_FOLDER to the path by which this script writes: where others may rename in the
# folder above, the name can pass to another folder at any time.
job::_hold() {
    local -r folder="$1"
    local held

    exec {held}< "${folder}" || return 1
    RUN_FOLDER="/proc/self/fd/${held}"
    job::_is_ours "${RUN_FOLDER}/." 022
}

# Where run folders go, as an absolute path: `~` is not expanded in a variable that a file or --export sets, and a
# relative path is meant from where sbatch was called.
job::_base() {
    local base="${BASE_LOG_DIR:-${SLURM_SUBMIT_DIR}}"

    # shellcheck disable=SC2088 # the letter itself
    case "${base}" in
        "~" | "~/"*) base="${HOME}${base#\~}" ;;
        /*) ;;
        *) base="${SLURM_SUBMIT_DIR}/${base}" ;;
    esac
    printf '%s\n' "${base}"
}

# Whether a folder is what `rlprof submit` has made for this very job: ours alone, with nothing but its record in it.
job::_is_prepared() {
    local -r folder="$1"
    local entry

    job::_is_ours "${folder}" 022 && job::_is_ours "${folder}/.secrets" 077 || return 1
    for entry in "${folder}"/* "${folder}"/.[!.]* "${folder}/.secrets"/* "${folder}/.secrets"/.[!.]*; do
        case "${entry#"${folder}"/}" in
            "*" | ".[!.]*" | .secrets | ".secrets/*" | ".secrets/.[!.]*" | .secrets/submit.json | .secrets/.submit.json.*) ;;
            *) return 1 ;;
        esac
    done
}

# Whether a path is a folder of this user, not a link, and lets nobody else do what the octal mask forbids.
job::_is_ours() {
    local -r folder="$1" forbidden="$2"
    local mode

    [[ -d ${folder} && -O ${folder} && ! -L ${folder} ]] || return 1
    mode="$(stat -c %a -- "${folder}")" || return 1
    (( (8#${mode} & 8#${forbidden}) == 0 ))
}

job::_why_not() {
    local -r base="$1"

    if [[ -L ${RLPROF_RUN_DIR} || ( -e ${RLPROF_RUN_DIR} && ! -O ${RLPROF_RUN_DIR} ) ]]; then
        printf 'it is there already and belongs to somebody else (%s). Set BASE_LOG_DIR to a folder where only you may write' \
            "$(stat -c %U -- "${RLPROF_RUN_DIR}" 2> /dev/null || printf unknown)"
    elif [[ -e ${RLPROF_RUN_DIR} ]]; then
        printf 'it is there already, from another job of this number or open to others. Move it away, or set BASE_LOG_DIR to another folder for this cluster'
    else
        printf '%s cannot be written by %s on %s' "${base}" "$(id -un)" "$(hostname)"
    fi
}

# A line in the user's own list of jobs, as rlprof submit writes it, where this is plain sbatch's job: Slurm forgets jobs
# after minutes. A home that cannot be written is no error.
job::_remember() {
    local -r state="${XDG_STATE_HOME:-${HOME-}/.local/state}/rlprof"
    local -r folder="${RLPROF_RUN_DIR%.r[0-9]*-logs}"
    local line

    [[ ${RLPROF_RUN_DIR} != *[[:cntrl:]\"\\]* && ${SLURM_JOB_NAME-} != *[[:cntrl:]\"\\]* ]] || return 0
    line="{\"job\": \"${SLURM_JOB_ID}\", \"run\": \"${folder%-logs}-logs\", \"name\": \"${SLURM_JOB_NAME-}\", \"submitted_ns\": "
    ! grep -qsF -- "${line}" "${state}/jobs.jsonl" || return 0
    (umask 0077; mkdir -p -- "${state}" && printf '%s%s}\n' "${line}" "$(date +%s%N)" >> "${state}/jobs.jsonl") 2> /dev/null || true
}

# From here on RLPROF_HARVEST_JOB says which it is: 1: this job's end submits a job for harvest and report; 0: the head does both.
job::who_harvests() {
    slurm::_split RLPROF_HARVEST_ARGS
    if command -v sbatch > /dev/null && harvest_job::is_wanted; then
        export RLPROF_HARVEST_JOB=1
    else
        export RLPROF_HARVEST_JOB=0
    fi
}

# What a container's mounts need before they are made: their folders, and an nsys under the name that is mounted.
job::container() {
    local output name

    case "$(slurm::container_runtime)" in "" | none) return 0 ;; esac
    if [[ -n ${UV_CACHE_DIR_OVERRIDE} ]]; then
        mkdir -p -- "${UV_CACHE_DIR_OVERRIDE}" \
            || common::fail 2 "UV_CACHE_DIR_OVERRIDE=${UV_CACHE_DIR_OVERRIDE}: cannot be made on $(hostname)."
        export UV_CACHE_DIR="${UV_CACHE_DIR_OVERRIDE}"
    fi
    for name in ${OUTPUT_VARIABLES}; do
        [[ -n ${!name-} ]] || continue
        output="$(slurm::absolute "${!name}")"
        (common::umask 027; mkdir -p -- "${output}") \
            || common::fail 2 "${name}=${output}: cannot be made on $(hostname). Give a folder on storage that all nodes share."
    done
    if [[ ${RLPROF_NSYS} == /* && -x ${RLPROF_NSYS} ]]; then
        # shellcheck disable=SC2034 # slurm.sh mounts each link on its way
        _RLPROF_NSYS_GIVEN="${RLPROF_NSYS}"
        RLPROF_NSYS="$(readlink -f -- "${RLPROF_NSYS}")"
    fi
}

# The head is Slurm's first node: the one this script runs on, so free ports can be seen from here.
job::addresses() {
    local -a nodes=()
    local gcs control

    # After scancel the drain has to end within it.
    RLPROF_KILL_WAIT="$(scontrol show config 2> /dev/null | sed -n 's/^KillWait *= *\([0-9]*\).*/\1/p' || true)"
    export RLPROF_KILL_WAIT
    mapfile -t nodes < <(scontrol show hostnames "${SLURM_JOB_NODELIST}")
    (( ${#nodes[@]} )) || common::fail 1 "\`scontrol show hostnames ${SLURM_JOB_NODELIST}\` named no node: scontrol has to be on PATH of the batch script and to work there."
    # A cluster whose Slurm does not count GPUs leaves it to us to do so.
    if scontrol show node "${nodes[0]}" 2> /dev/null | grep -qE '(Gres=|CfgTRES=.*gres/)gpu'; then
        export RLPROF_SLURM_COUNTS_GPUS=1
    else
        export RLPROF_SLURM_COUNTS_GPUS=0
    fi
    read -r gcs control < <(slurm::free_ports "${SLURM_JOB_ID}")
    [[ ${PORT} == 0 ]] || gcs="${PORT}"
    [[ ${RLPROF_CONTROL_PORT} == 0 ]] || control="${RLPROF_CONTROL_PORT}"
    RLPROF_HEAD_IP="$(slurm::address "${nodes[0]}")"
    export RLPROF_HEAD_IP RLPROF_NODES="${nodes[*]}" RLPROF_GCS_PORT="${gcs}" RLPROF_CONTROL_PORT_CHOSEN="${control}"
}

# Tell the keeper of the head's supervisor, whose order reaches the next supervisor too where this one dies, and through
# it the other nodes. A signal through Slurm would reach every process of the step, Ray's workers among them, which would
# die with their windows open. Where the keeper is not visible from here, in a container with processes of its own, Slurm
# has to do it: by the step's id, never to the local srun, because Slurm kills a step whose srun was signalled.
job::_pass_on() {
    local -r signal="$1"
    local pid step

    [[ -n ${client} ]] || return 0
    signalled=1
    pid="$(job::_keeper)"
    if [[ -n ${pid} ]] && kill -s "${signal}" -- "${pid}" 2> /dev/null; then
        common::log "got ${signal}: told the head's supervisor to drain"
    elif step="$(slurm::step)" && [[ -n ${step} ]] && scancel "--signal=${signal}" "${step}" 2> /dev/null; then
        common::log "got ${signal}: told step ${step} to drain"
    else
        # The step is about to begin: it hears it then.
        (sleep 1; kill -s "${signal}" "$$") 2> /dev/null &
    fi
}

# The pid of what keeps this job's supervisor on this node, found by its environment: the supervisor is its child, with the
# same words and variables, and may be dead.
job::_keeper() {
    local file folder parent found=""
    # One grep for all processes: a node may have thousands, and little time is left.
    while IFS= read -r file; do
        folder="${file%/*}"
        if grep -qsazFx -- "RLPROF_RUN_DIR=${RLPROF_RUN_DIR}" "${folder}/environ" && grep -qsazFx -- "SLURM_NODEID=0" "${folder}/environ"; then
            found+=" ${folder#/proc/} "
        fi
    done < <(grep -lsazFx -- rlprof_ops.supervisor /proc/[0-9]*/cmdline)
    for file in ${found}; do
        parent="$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/${file}/status" 2> /dev/null)"
        [[ ${found} == *" ${parent:-none} "* ]] || { printf '%s\n' "${file}"; return 0; }
    done
}

# Nodes whose supervisor was killed left no record, and nodes that the storage failed a bad one: bring home what lies
# there. A node that is dead costs the deadline.
job::salvage() {
    local -r code="$1"
    local node
    local -a behind=()
    local -A salvages=()

    [[ -e ${RLPROF_RUN_DIR}/run.json ]] || return 0
    for node in ${RLPROF_NODES}; do
        grep -qs '"cleared": true' "${RLPROF_RUN_DIR}/nodes/${node}.json" || behind+=("${node}")
    done
    (( ${#behind[@]} )) || return 0
    common::log "no record of a clean end from ${behind[*]}: bringing home what is left there (logs/salvage.log)"
    for node in "${behind[@]}"; do
        RLPROF_STEP_CODE="${code}" job::_again "${node}" "$(( RLPROF_DRAIN_SECONDS + 10 ))" rlprof_ops.supervisor.salvage \
            >> "${RUN_FOLDER}/logs/salvage.log" 2>&1 &
        salvages["${node}"]="$!"
    done
    for node in "${behind[@]}"; do
        wait "${salvages[${node}]}" || common::log "node ${node}: not everything came home: $(job::_why_not_home "${node}")"
    done
    harvest_here=1
}

# Let a job of its own harvest and report, where the knobs ask for it: this one's nodes are free then. A start that failed
# has its manifest already, from the head.
job::order_harvest() {
    local number

    [[ ${RLPROF_HARVEST_JOB} == 1 && -e ${RLPROF_RUN_DIR}/run.json ]] || return 0
    ! grep -qs '"cause": "startup_failed"' "${RLPROF_RUN_DIR}/run.json" || [[ ! -e ${RLPROF_RUN_DIR}/manifest.json ]] || return 0
    if number="$(harvest_job::submit "${RLPROF_HOME}" "${RLPROF_RUN_DIR}" 2>> "${RUN_FOLDER}/logs/harvest.log")"; then
        common::log "harvest and report: job ${number}, when this one has ended (logs/harvest.log)"
        harvest_ordered=1
    else
        common::log "harvest and report: not as a job of their own, sbatch said:" \
            "$(tail -n 2 "${RLPROF_RUN_DIR}/logs/harvest.log" 2> /dev/null | paste -s -d ' ')"
        common::log "this job harvests by itself and keeps its nodes meanwhile (RLPROF_HARVEST_ARGS may name a partition; RLPROF_HARVEST_JOB=0 asks for this)"
        harvest_here=1
    fi
}

# On the head's node, as its supervisor does it where nothing else is asked. What it made before a salvage is made again.
job::harvest_here() {
    if (( RLPROF_HARVEST_SECONDS )); then
        job::_harvest "${RLPROF_HARVEST_SECONDS}" "${RLPROF_RUN_DIR}" || true
    fi
    if (( RLPROF_REPORT_SECONDS )) && harvest_job::has_something "${RLPROF_RUN_DIR}"; then
        job::_again "$(job::_here)" "${RLPROF_REPORT_SECONDS}" rlprof_ops report "${RLPROF_RUN_DIR}" || true
    fi
}

# Make a manifest on this host, within so many seconds: told when it is ended, it writes one before. The words are those of
# harvest_words in job/harvest_job.py.
job::_harvest() {
    local -r seconds="$1" folder="$2"
    local now

    printf -v now '%(%s)T' -1
    job::_again "$(job::_here)" "${seconds}" rlprof_ops harvest --until "$(( now + seconds ))" "${folder}"
}

# Where the head never began, as with an image that does not start: run.json with srun's words, for the manifest.
job::record_bad_start() {
    local -r code="$1"

    [[ ! -e ${RLPROF_RUN_DIR}/run.json ]] || return 0
    if RLPROF_STEP_CODE="${code}" job::_again "$(job::_here)" "${_RLPROF_STORAGE_SECONDS}" rlprof_ops.supervisor.salvage --never-began \
        >> "${RUN_FOLDER}/logs/salvage.log" 2>&1; then
        harvest_here=1
    else
        common::log "no manifest: nothing of ours runs on $(hostname) (logs/salvage.log)"
    fi
}

# This host, as Slurm calls it.
job::_here() {
    printf '%s' "${SLURMD_NODENAME:-${RLPROF_NODES%% *}}"
}

# Whether the run folder answers and is the one that this job made, else WHY: on a file server that is dead a look at it
# would hold the allocation to its time limit, and where others may rename in the folder above, another one can get its name.
job::_storage_answers() {
    local code=0

    # No substitution in this shell: its pipe would stay open as long as a call to a dead file server hangs.
    # shellcheck disable=SC2016
    timeout --kill-after=1 "${_RLPROF_STORAGE_SECONDS}" bash -c \
        'found="$(stat -c "%u %i" -- "$1")" || exit 1; [[ -z $2 || ${found} == "$2" ]] || exit 2' \
        look "${RLPROF_RUN_DIR}" "${_RLPROF_RUN_IDENTITY-}" > /dev/null 2>&1 || code="$?"
    WHY="the storage of ${RLPROF_RUN_DIR} does not answer"
    (( code != 2 )) || WHY="${RLPROF_RUN_DIR} has been replaced: it is not the folder that this job made, and nothing is written there"
    (( code < 124 && code != 2 ))
}

job::_why_not_home() {
    local -r node="$1"
    local words

    words="$(sed -n "s/^rlprof: salvage: node ${node}: //p" "${RLPROF_RUN_DIR}/logs/salvage.log" 2> /dev/null | tail -n 1 || true)"
    printf '%s' "${words:-see logs/salvage.log}"
}

# Run a module of ours on one node as its supervisor was run; on this host without srun, which a job that is being ended
# ("Slurm job ... has expired") gets no step from.
job::_again() {
    local -r node="$1" seconds="$2" options="$(( ${#SRUN[@]} - ${#TASK_LINE[@]} - 1 ))"
    local -a line=(srun --overlap "--nodelist=${node}")
    local word

    if [[ ${node} == "$(job::_here)" ]] && job::_line_here; then
        SLURM_NODEID=0 timeout --kill-after=5 "${seconds}" "${LINE_HERE[@]}" "${@:3}"
        return
    fi

    for word in "${SRUN[@]:1:options}"; do
        case "${word}" in
            --nodes=*) line+=(--nodes=1) ;;
            --ntasks=*) line+=(--ntasks=1) ;;
            *) line+=("${word}") ;;
        esac
    done
    # A step's tasks find its name in the place of the job's.
    line+=("--job-name=${BESIDE}" env "SLURM_JOB_NAME=${SLURM_JOB_NAME-}" "${TASK_LINE[@]}")
    timeout --kill-after=5 "${seconds}" "${line[@]}" "${@:3}"
}

# Fill LINE_HERE with what runs a module of ours on this host without srun. In an image there is a Python for sure, and
# pyxis leads into it through srun alone: then it is this host's own, where that has what we need.
job::_line_here() {
    local python

    case "$(slurm::container_runtime)" in
        pyxis)
            for python in "${RLPROF_PYTHON}" "${RLPROF_VENV:+${RLPROF_VENV}/bin/python}" python3; do
                if [[ -n ${python} ]] && "${python}" -c 'import click, yaml, sys; sys.exit(sys.version_info < (3, 10))' 2> /dev/null; then
                    LINE_HERE=(env "RLPROF_PYTHON=${python}" bash "${RLPROF_HOME}/scripts/node.sh")
                    return 0
                fi
            done
            return 1
            ;;
        *) LINE_HERE=("${TASK_LINE[@]}") ;;
    esac
}

# A container with a name stays on its node, the whole image unpacked, until somebody removes it; the plugin puts the
# job's number into the name where the site has told it to. Slurm starts no step once a job is being ended, so the one
# that removes them begins with the job. It waits on each host until this script closes its standard input, or is gone.
job::attend_containers() {
    [[ $(slurm::container_runtime) == pyxis ]] || return 0
    # shellcheck disable=SC2016 # expanded by the shell on the node
    REMOVE=(bash -c 'trap "" TERM INT HUP USR1 USR2
        cat > /dev/null
        command -v enroot > /dev/null || { echo "rlprof: node $(hostname): no enroot on PATH, so container $1 stays"; exit 0; }
        known="$(enroot list)"
        for name in "pyxis_$1" "pyxis_$2_$1"; do
            ! grep -qFx -- "${name}" <<< "${known}" || enroot remove --force "${name}"
        done' remove "rlprof-${RLPROF_JOB}" "${SLURM_JOB_ID}")
    local -r log="${RUN_FOLDER}/logs/salvage.log"
    exec {containers}> >(trap '' TERM USR2; job::_on_hosts "--nodes=${SLURM_JOB_NUM_NODES}" "--ntasks=${SLURM_JOB_NUM_NODES}")
    attendant="${!-}"
}

# Let that step begin; `job::remove_containers` waits for it.
job::release_containers() {
    [[ -n ${containers} ]] || return 0
    exec {containers}>&-
    containers=""
}

# Where that step could not do it, as on a node that died, one by one: this host needs no step for it.
job::remove_containers() {
    local node
    local log="${RUN_FOLDER}/logs/salvage.log"

    [[ $(slurm::container_runtime) == pyxis ]] || return 0
    job::release_containers
    ! job::_ended_well "${attendant}" || return 0
    job::_storage_answers || log=/dev/null
    for node in ${RLPROF_NODES}; do
        job::_remove_on "${node}" < /dev/null \
            || common::log "node ${node}: container rlprof-${RLPROF_JOB} may be there still (logs/salvage.log): enroot remove --force pyxis_rlprof-${RLPROF_JOB}" &
    done
    wait || true
}

job::_remove_on() {
    if [[ $1 == "$(job::_here)" ]]; then
        timeout --kill-after=5 "${_RLPROF_REMOVE_SECONDS}" "${REMOVE[@]}" >> "${log}" 2>&1
    else
        job::_on_hosts "--nodelist=$1" --nodes=1 --ntasks=1 --time=2
    fi
}

# The step that removes containers, with more options. Nothing of the user's may put it into a container of its own.
job::_on_hosts() {
    local -a line=(srun --overlap "--job-name=${BESIDE}" --ntasks-per-node=1 --mpi=none --kill-on-bad-exit=0 --gres=none "$@" "${REMOVE[@]}")

    env -u PYXIS_CONTAINER_IMAGE -u PYXIS_CONTAINER_NAME "${line[@]}" >> "${log}" 2>&1
}

# Whether a process of ours ends with 0, in time.
job::_ended_well() {
    local -r pid="$1"
    local try

    [[ -n ${pid} ]] || return 1
    for (( try = 0; try < _RLPROF_REMOVE_SECONDS * 10; try++ )); do
        kill -0 "${pid}" 2> /dev/null || { wait "${pid}" 2> /dev/null; return; }
        sleep 0.1
    done
    return 1
}

# Pass on what srun says and listen for the end of a task: a container that does not start is told by srun alone, while
# the other nodes would wait for it. `control/ended_<node>` is what the head looks for as long as its cluster starts;
# where the head itself is what ended, nobody would look, and nothing of ours runs yet.
job::_listen_to_srun() {
    local line words="" node head_ended=""
    local -r ended='^srun: error: ([^ :]+): tasks? [0-9,-]+: (.*)$'
    local -r unlaunched='^srun: error: task ([0-9]+) (launch failed: .*)$'
    local -a nodes=()

    trap '' TERM USR2
    read -ra nodes <<< "${RLPROF_NODES}"
    while IFS= read -r line || [[ -n ${line} ]]; do
        printf '%s\n' "${line}" >&2
        if [[ ${line} =~ ^(slurmstepd(-[^ :]+)?|FATAL|enroot|\[ERROR\]|rlprof): ]]; then
            words="$(printf '%s\n%s' "${words}" "${line}" | tail -n "${_RLPROF_MOST_WORDS}")"
        elif [[ ${line} =~ ${ended} ]]; then
            for node in $(scontrol show hostnames "${BASH_REMATCH[1]}"); do
                job::_task_ended "${node}" "${BASH_REMATCH[2]}" "${words}"
            done
        elif [[ ${line} =~ ${unlaunched} ]]; then
            # There is one task a node, so its number is the node's.
            job::_task_ended "${nodes[BASH_REMATCH[1]]-${BASH_REMATCH[1]}}" "${BASH_REMATCH[2]}" "${words}"
        fi
    done
    # The reason can come after the end of the task.
    [[ -z ${head_ended} ]] || job::_note_end "${nodes[0]}" "${head_ended}" "${words}"
}

job::_task_ended() {
    local -r node="$1" how="$2" words="$3"
    local step

    job::_note_end "${node}" "${how}" "${words}" || return 0
    if [[ ${node} == "${RLPROF_NODES%% *}" && ! -e ${RLPROF_RUN_DIR}/run.json ]]; then
        head_ended="${how}"
        common::log "node ${node}, the head, ended before it began (${how}): ending the others"
        step="$(slurm::step)"
        [[ -z ${step} ]] || scancel --signal=TERM "${step}" || true
    fi
}

# Write how a task ended and its node's last words; false where the storage does not answer. What is said after every
# reason, that a plug-in failed and how many files were unpacked, tells none.
job::_note_end() {
    local -r node="$1" how="$2" words="$3"
    local WHY=""
    local -r place="${RUN_FOLDER}/control/ended_${node//\//_}"

    job::_storage_answers || { common::log "${WHY}"; return 1; }
    (
        umask 0077
        {
            printf '%s\n' "${how}"
            printf '%s\n' "${words}" | awk -v own="slurmstepd-${node}:" '
                /^slurmstepd-/ && index($0, own) != 1 { next }
                /^slurmstepd[^:]*: error: (spank: |Failed to invoke spank|pyxis: (printing enroot log|[[:space:]]*$))/ { next }
                /^slurmstepd[^:]*: error: pyxis: (container was not started| *(\[INFO\]|Parallel |created [0-9]|[0-9]+ inodes))/ { next }
                { print }' | tail -n 4
        } > "${place}.tmp" && mv -- "${place}.tmp" "${place}"
    ) 2> /dev/null || true
}

job::run() {
    local code client=none listener said signalled="" harvest_ordered="" harvest_here="" containers="" attendant="" WHY=""
    local -a line=("${SRUN[@]}")

    job::attend_containers
    trap 'job::_pass_on TERM' TERM
    trap 'job::_pass_on USR2' USR2
    # shellcheck disable=SC2016 # expanded by that shell
    [[ -z ${ORDERED} ]] || line=(bash -c 'exit "$1"' ordered "${ORDERED}")
    exec {said}> >(job::_listen_to_srun)
    listener="${!-}"  # bash before 4.4 does not tell it, and then nothing waits for its last lines
    if [[ -n ${containers} ]]; then
        "${line[@]}" 2>&"${said}" {said}>&- {containers}>&- &
    else
        "${line[@]}" 2>&"${said}" {said}>&- &
    fi
    client="$!"
    exec {said}>&-
    # A trapped signal ends `wait` early; bash remembers the status of a child that ended meanwhile.
    while true; do
        code=0
        signalled=""
        wait "${client}" || code="$?"
        [[ -n ${signalled} ]] || break
    done
    client=""
    wait "${listener}" 2> /dev/null || true
    if job::_storage_answers; then
        # srun ends with 0 where no task could be launched at all.
        if (( code == 0 )) && [[ ! -e ${RLPROF_RUN_DIR}/run.json ]]; then
            common::log "no node began: srun said why above"
            code=1
        fi
        job::record_bad_start "${code}"
        job::order_harvest
        [[ -n ${ORDERED} ]] || job::salvage "${code}"
        # Slurm may leave time for one of the two alone, and this host's Python needs no container to harvest.
        [[ -z ${containers} ]] || ! job::_line_here || job::release_containers
        [[ -n ${harvest_ordered} || -z ${harvest_here} ]] || job::harvest_here
    else
        common::log "${WHY}: what it did not take is on the nodes, in ${RLPROF_NODE_ROOT}"
    fi
    job::remove_containers
    common::log "ended with exit code ${code}; everything of this job: ${RLPROF_RUN_DIR}"
    exit "${code}"
}
