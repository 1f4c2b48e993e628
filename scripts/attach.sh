#!/usr/bin/env bash
# Opens a shell on a node of a running job, in its container, with the job's Ray reachable:
#   attach.sh <job id | run folder> [node name | node index, 0 is the head]
# With COMMAND set, runs that instead of a shell.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib/common.sh"
# shellcheck source=scripts/lib/slurm.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib/slurm.sh"

attach::run_folder() {
    local -r what="$1"
    local folder
    for folder in "${what}" "${BASE_LOG_DIR:-.}/${what}-logs"; do
        if [[ -r ${folder}/.secrets/attach.env ]]; then
            # It is run as shell code below.
            [[ -O ${folder} && -O ${folder}/.secrets && ! -L ${folder}/.secrets && -O ${folder}/.secrets/attach.env ]] \
                || common::fail 2 "${folder} is the run folder of another user."
            (cd -- "${folder}" && pwd)
            return 0
        fi
    done
    common::fail 2 "${what}: neither a run folder nor a job with ${BASE_LOG_DIR:-.}/${what}-logs that you may attach to."
}

# A variable of the job as its nodes have it.
attach::_of_job() {
    local -r folder="$1" name="$2"
    # shellcheck source=/dev/null
    (source "${folder}/.secrets/attach.env" && printf '%s' "${!name-}")
}

# Fill the array INTO with what leads into the job's container; empty without one.
attach::_container() {
    local -r folder="$1"
    local image runtime mounts
    local -a extra=()

    INTO=()
    image="$(attach::_of_job "${folder}" CONTAINER)"
    runtime="$(attach::_of_job "${folder}" RLPROF_CONTAINER_RUNTIME)"
    mounts="$(attach::_of_job "${folder}" RLPROF_MOUNTS_CHOSEN)"
    case "${runtime:-${image:+pyxis}}" in
        pyxis)
            # The container that runs already: without `exec` a name that is not there would mean a new one.
            INTO=("--container-name=rlprof-$(attach::_of_job "${folder}" RLPROF_JOB):exec"
                "--container-mounts=${mounts}" --no-container-mount-home)
            ;;
        apptainer)
            mapfile -t extra < <(attach::_of_job "${folder}" RLPROF_APPTAINER_ARGS | xargs -r printf "%s\n")
            INTO=(apptainer exec ${extra[@]+"${extra[@]}"} --bind "${mounts}" "${image}")
            ;;
    esac
}

attach::main() {
    (( $# >= 1 )) || common::fail 2 "usage: attach.sh <job id | run folder> [node name | node index]"
    local folder job node="${2:-0}"
    local -a nodes=() line=()

    folder="$(attach::run_folder "$1")"
    job="$(attach::_of_job "${folder}" RLPROF_JOB)"
    job="${job%%.*}"
    # Slurm takes the number of an array's last element for all its elements.
    mapfile -t nodes < <(scontrol show hostnames "$(slurm::squeue "--jobs=${job}" '--format=%A %N' | sed -n "s/^${job} //p")")
    (( ${#nodes[@]} > 0 )) || common::fail 1 "job ${job} is not running."
    if [[ ${node} =~ ^[0-9]+$ ]]; then
        common::numbers node
        (( node < ${#nodes[@]} )) || common::fail 2 "node ${node}: the job has nodes 0 to $(( ${#nodes[@]} - 1 )): ${nodes[*]}."
        node="${nodes[${node}]}"
    fi
    [[ " ${nodes[*]} " == *" ${node} "* ]] || common::fail 2 "node ${node}: the job has ${nodes[*]}."
    line=(srun "--jobid=${job}" --overlap --nodes=1 --ntasks=1 "--nodelist=${node}" --mpi=none)
    if [[ -z ${COMMAND-} && -t 0 ]]; then
        line+=(--pty)
    fi
    attach::_container "${folder}"
    line+=(${INTO[@]+"${INTO[@]}"})
    # shellcheck disable=SC2016 # expanded by the shell on the node
    exec "${line[@]}" bash -c 'source "$0" && if [[ -n $1 ]]; then exec bash -c "$1"; else exec bash -i; fi' \
        "${folder}/.secrets/attach.env" "${COMMAND-}"
}

attach::main "$@"
