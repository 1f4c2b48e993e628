# shellcheck shell=bash
# What Slurm knows of this job: its nodes, their addresses, free ports on this host, the srun line.

[[ -n ${_RLPROF_SLURM_LOADED-} ]] && return 0
readonly _RLPROF_SLURM_LOADED=1

# Write the run folder into the job's comment, after what its user wrote there, so that whoever knows the job's id finds
# it (slurm/client.py reads it). Any user may change the comment of an own job; a Slurm that refuses is no error.
slurm::record_run_folder() {
    local -r folder="$1"
    local comment

    comment="$(scontrol show job "${SLURM_JOB_ID}" 2> /dev/null | sed -n 's/^ *Comment=//p' | head -n 1 || true)"
    [[ ${comment} != '(null)' ]] || comment=""
    comment="${comment%%rlprof:/*}"
    comment="${comment%; }"
    timeout 10 scontrol update "JobId=${SLURM_JOB_ID}" "Comment=${comment:+${comment}; }rlprof:${folder}" > /dev/null 2>&1 \
        || common::log "Slurm did not take the run folder as the job's comment: give rlprof the folder instead of the job id"
}

# The first IPv4 address of a node: what Slurm itself uses to reach it, else what the host's resolver says.
slurm::address() {
    local -r node="$1"
    local address

    address="$(scontrol show node "${node}" 2> /dev/null | sed -n 's/^.*NodeAddr=\([^ ]*\).*$/\1/p' | head -n 1)"
    address="${address:-${node}}"
    if [[ ! ${address} =~ ^[0-9]+(\.[0-9]+){3}$ ]]; then
        address="$(getent ahostsv4 "${address}" | awk '$1 !~ /^127\./ { print $1; exit }')"
    fi
    [[ -n ${address} ]] || common::fail 1 "node ${node}: no IPv4 address found (asked Slurm for NodeAddr, then getent)."
    printf '%s\n' "${address}"
}

# Ports somebody listens on in this host, one a line.
slurm::_listening_ports() {
    local port
    awk '$4 == "0A" { split($2, part, ":"); print part[length(part)] }' /proc/net/tcp /proc/net/tcp6 2> /dev/null \
        | sort -u | while read -r port; do printf '%d\n' "0x${port}"; done
}

# Two adjacent free ports below the range the kernel hands out by itself, spread by job id so that two jobs that
# start at once on a shared node try different ones first.
slurm::free_ports() {
    local -r job="$1"
    local floor base try
    local -A taken=()

    while read -r base; do taken["${base}"]=1; done < <(slurm::_listening_ports)
    read -r floor _ < /proc/sys/net/ipv4/ip_local_port_range
    (( floor > 12000 )) || floor=32768
    for (( try = 0; try < 500; try++ )); do
        base=$(( 10000 + ((job * 2 + try * 14) % (floor - 10002)) ))
        if [[ -z ${taken[${base}]-} && -z ${taken[$((base + 1))]-} ]]; then
            printf '%d %d\n' "${base}" "$((base + 1))"
            return 0
        fi
    done
    common::fail 1 "no two adjacent free ports between 10000 and ${floor} on $(hostname)."
}

# Fill the array SRUN with the line that starts one supervisor on every node. Reads knobs only.
slurm::srun_line() {
    local -r home="$1" run_folder="$2"
    local -a extra=()

    # Without --unbuffered: it gives the tasks a terminal, so colours and broken lines would stand in slurm-<job>.out.
    SRUN=(srun "--nodes=${SLURM_JOB_NUM_NODES}" "--ntasks=${SLURM_JOB_NUM_NODES}" --ntasks-per-node=1 --mpi=none --wait=0)
    if [[ -n ${CPUS_PER_WORKER} ]]; then
        SRUN+=("--cpus-per-task=${CPUS_PER_WORKER}")
    else
        SRUN+=(--whole)
    fi
    # A node that fails tells the others; Slurm's own way would kill them before they have drained.
    SRUN+=(--kill-on-bad-exit=0)
    read -ra extra <<< "${RLPROF_SRUN_ARGS}"
    SRUN+=("${extra[@]}")
    slurm::_container_arguments "${home}" "${run_folder}"
    SRUN+=(bash "${home}/scripts/node.sh")
}

slurm::_container_arguments() {
    local -r home="$1" run_folder="$2"
    local mounts="${MOUNTS:+${MOUNTS},}${home}:${home},${run_folder}:${run_folder}"
    local -a extra=()

    if [[ -n ${UV_CACHE_DIR_OVERRIDE} ]]; then
        mounts+=",${UV_CACHE_DIR_OVERRIDE}:/root/.cache/uv"
    fi
    case "${RLPROF_CONTAINER_RUNTIME:-${CONTAINER:+pyxis}}" in
        pyxis)
            # shellcheck disable=SC2054 # the commas belong to the options' values
            SRUN+=("--container-image=${CONTAINER}" "--container-name=rlprof-${RLPROF_JOB}" "--container-mounts=${mounts}"
                --no-container-mount-home "--container-workdir=${SLURM_SUBMIT_DIR}" --container-env=RLPROF_HOME,RLPROF_RUN_DIR)
            ;;
        apptainer)
            read -ra extra <<< "${RLPROF_APPTAINER_ARGS}"
            SRUN+=(apptainer exec "${extra[@]}" --bind "${mounts}" --pwd "${SLURM_SUBMIT_DIR}" "${CONTAINER}")
            ;;
    esac
}
