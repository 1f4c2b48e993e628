#!/usr/bin/env bash
# Opens a shell on a node of a running job, in its container, with the job's Ray reachable:
#   attach.sh <job id | run folder> [node name | node index, 0 is the head]
# With COMMAND set, runs that instead of a shell.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib/common.sh"

attach::run_folder() {
    local -r what="$1"
    local folder
    for folder in "${what}" "${BASE_LOG_DIR:-.}/${what}-logs"; do
        if [[ -r ${folder}/.secrets/attach.env ]]; then
            (cd -- "${folder}" && pwd)
            return 0
        fi
    done
    common::fail 2 "${what}: neither a run folder nor a job with ${BASE_LOG_DIR:-.}/${what}-logs that you may attach to."
}

attach::main() {
    (( $# >= 1 )) || common::fail 2 "usage: attach.sh <job id | run folder> [node name | node index]"
    local folder job node="${2:-0}"
    local -a nodes=() line=()

    folder="$(attach::run_folder "$1")"
    # shellcheck source=/dev/null
    job="$(source "${folder}/.secrets/attach.env" && printf '%s' "${RLPROF_JOB%%.*}")"
    mapfile -t nodes < <(scontrol show hostnames "$(squeue -h -j "${job}" -o %N)")
    (( ${#nodes[@]} > 0 )) || common::fail 1 "job ${job} is not running."
    if [[ ${node} =~ ^[0-9]+$ ]]; then
        (( node < ${#nodes[@]} )) || common::fail 2 "node ${node}: the job has nodes 0 to $(( ${#nodes[@]} - 1 )): ${nodes[*]}."
        node="${nodes[${node}]}"
    fi
    line=(srun "--jobid=${job}" --overlap --nodes=1 --ntasks=1 "--nodelist=${node}" --mpi=none)
    [[ -n ${COMMAND-} ]] || line+=(--pty)
    if [[ -n ${CONTAINER-} && ${RLPROF_CONTAINER_RUNTIME:-pyxis} == pyxis ]]; then
        line+=("--container-name=rlprof-${job}")
    fi
    # shellcheck disable=SC2016 # expanded by the shell on the node
    exec "${line[@]}" bash -c 'source "$0" && if [[ -n $1 ]]; then exec bash -c "$1"; else exec bash -i; fi' \
        "${folder}/.secrets/attach.env" "${COMMAND-}"
}

attach::main "$@"
