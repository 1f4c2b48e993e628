#!/usr/bin/env bash
# Starts one node's supervisor, inside the container where there is one: finds Python, sets library paths.
# With arguments: another module of ours and its arguments, in the same surroundings.
set -euo pipefail

readonly node="${SLURMD_NODENAME:-$(hostname)}"

node::fail() {
    printf 'rlprof: node %s: %s\n' "${node}" "$1" >&2
    # The run folder keeps the message too: a job's own output is often looked at last.
    printf 'rlprof: node %s: %s\n' "${node}" "$1" 2> /dev/null >> "${RLPROF_RUN_DIR}/logs/${node}.log" || true
    node::end_step
    exit 127
}

# Tell the other nodes to end in order. Without Slurm's commands, as in a container, the head finds this node missing
# at its deadline.
node::end_step() {
    if [[ ${RLPROF_MIN_NODES:-0} == 0 && -n ${SLURM_STEP_ID-} ]] && command -v scancel > /dev/null; then
        scancel --signal=TERM "${SLURM_JOB_ID}.${SLURM_STEP_ID}" || true
    fi
}

node::library_path() {
    local addition=""
    case "$(uname -m)" in
        x86_64) addition="${RLPROF_LD_LIBRARY_PATH_X86_64-}" ;;
        aarch64) addition="${RLPROF_LD_LIBRARY_PATH_AARCH64-}" ;;
    esac
    if [[ -n ${addition} ]]; then
        export LD_LIBRARY_PATH="${addition}${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}"
    fi
}

node::python() {
    local python="${RLPROF_PYTHON-}"

    if [[ -n ${RLPROF_VENV-} ]]; then
        export PATH="${RLPROF_VENV}/bin:${PATH}" VIRTUAL_ENV="${RLPROF_VENV}"
        python="${python:-${RLPROF_VENV}/bin/python}"
    fi
    python="${python:-python3}"
    PYTHON="$(command -v -- "${python}")" \
        || node::fail "no Python: '${python}' is not there. Set RLPROF_VENV or RLPROF_PYTHON to one that every node has."
}

# Files that a job makes are its user's alone unless the site's umask is stricter still.
umask "$(printf '%04o' "$(( 8#$(umask) | 8#027 ))")"
ulimit -Sn "$(ulimit -Hn)" 2> /dev/null || true
node::library_path
node::python
export PYTHONPATH="${RLPROF_HOME}/python${PYTHONPATH:+:${PYTHONPATH}}" PYTHONUNBUFFERED=1
exec "${PYTHON}" -m "${@:-rlprof_ops.supervisor}"
