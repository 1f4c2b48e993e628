#!/usr/bin/env bash
# Lists what a job left: by hand, or for a job that could not do it itself:
#   sbatch --dependency=afterany:<job> scripts/harvest.sh <job>
#SBATCH --nodes=1 --ntasks=1 --job-name=rlprof-harvest
set -euo pipefail

harvest::err() {
    printf 'harvest.sh: %s\n' "$1" >&2
    exit 2
}

# Slurm runs a copy of a batch script from its spool folder; the command it was submitted as tells where it lives.
harvest::_home() {
    local script="${BASH_SOURCE[0]}" shown
    if [[ -n "${RLPROF_HOME:-}" ]]; then
        printf '%s' "${RLPROF_HOME}"
        return
    fi
    if [[ -n "${SLURM_JOB_ID:-}" ]] && shown="$(scontrol show job "${SLURM_JOB_ID}" 2>/dev/null)"; then
        # Command= holds the script and its arguments; no field follows on its line.
        shown="$(sed -n 's/^ *Command=//p' <<<"${shown}")"
        if [[ "${shown}" == */scripts/harvest.sh* ]]; then
            script="${shown%%/scripts/harvest.sh*}/scripts/harvest.sh"
        fi
    fi
    cd "$(dirname "${script}")/.." && pwd
}

harvest::_python() {
    local candidate
    for candidate in ${RLPROF_PYTHON:+"${RLPROF_PYTHON}"} ${RLPROF_VENV:+"${RLPROF_VENV}/bin/python"} python3 python; do
        if "${candidate}" -c 'import click, yaml' 2>/dev/null; then
            printf '%s' "${candidate}"
            return
        fi
    done
    harvest::err "no Python with click and PyYAML found (tried ${RLPROF_PYTHON:+${RLPROF_PYTHON}, }${RLPROF_VENV:+${RLPROF_VENV}/bin/python, }python3, python); set RLPROF_PYTHON"
}

# The run folder that the first argument names, as `rlprof harvest` understands it.
harvest::_folder() {
    "$1" -c 'import sys; from rlprof_ops.job.run_folder import run_folder; print(run_folder(sys.argv[1]))' "$2" 2>/dev/null || true
}

# A job's end submitted this: it is over when this script is, however that ends.
# shellcheck disable=SC2317 # by the trap
harvest::_note_end() {
    local -r file="${RLPROF_RUN_DIR:-}/harvest_job.json"

    if [[ -n "${SLURM_JOB_ID:-}" ]] && grep -qs "\"job\": \"${SLURM_JOB_ID}\"" "${file}"; then
        rm -f -- "${file}"
    fi
}

# Where the job ran in a container, its Python and its nsys are there: fill WORDS with what runs `rlprof` inside one like it.
harvest::_container() {
    local -r home="$1"
    local word
    local -a words=()

    # shellcheck source=scripts/lib/common.sh
    source "${home}/scripts/lib/common.sh"
    # shellcheck source=scripts/lib/knobs.sh
    source "${home}/scripts/lib/knobs.sh"
    # shellcheck source=scripts/lib/slurm.sh
    source "${home}/scripts/lib/slurm.sh"
    knobs::load "${home}"
    export SLURM_JOB_NUM_NODES=1 CPUS_PER_WORKER=""
    slurm::srun_line "${home}" "${RLPROF_RUN_DIR}"
    for word in "${SRUN[@]}"; do
        # Without a name it goes with its step.
        [[ "${word}" == --container-name=* ]] || words+=("${word}")
    done
    WORDS=("${words[@]}" rlprof_ops)
}

harvest::main() {
    [[ $# -ge 1 ]] || harvest::err "usage: harvest.sh <run folder | job id> [options of rlprof harvest]"
    local home python folder="" status=0 report=1
    local -a rlprof=()
    home="$(harvest::_home)"
    [[ -d "${home}/python/rlprof_ops" && -r "${home}/scripts/lib/harvest_job.sh" ]] || harvest::err "rlprof-ops is not in ${home}; set RLPROF_HOME to its checkout"
    # shellcheck source=scripts/lib/harvest_job.sh
    source "${home}/scripts/lib/harvest_job.sh"
    trap harvest::_note_end EXIT
    umask "$(printf '%04o' "$(( 8#$(umask) | 8#027 ))")"
    case "${RLPROF_CONTAINER_RUNTIME:-${CONTAINER:-}}" in
        "" | none) ;;
        *) [[ -z "${RLPROF_RUN_DIR:-}" || -z "${SLURM_JOB_ID:-}" ]] || folder="${RLPROF_RUN_DIR}" ;;
    esac
    if [[ -n "${folder}" ]]; then
        harvest::_container "${home}"
        rlprof=("${WORDS[@]}")
    else
        python="$(harvest::_python)"
        export PYTHONPATH="${home}/python${PYTHONPATH:+:${PYTHONPATH}}"
        rlprof=("${python}" -m rlprof_ops)
        "${python}" -c 'import msgspec, numpy, pyarrow, rich, jinja2' 2>/dev/null || report=0
    fi
    "${rlprof[@]}" harvest "$@" || status=$?
    if (( report )) && [[ "${RLPROF_REPORT_SECONDS:-120}" != 0 ]]; then
        folder="${folder:-$(harvest::_folder "${python}" "$1")}"
        # A report that cannot be made takes nothing from the harvest: its exit code is the one that counts.
        if [[ -n "${folder}" ]] && harvest_job::has_something "${folder}"; then
            timeout "${RLPROF_REPORT_SECONDS:-120}" "${rlprof[@]}" report "${folder}" >&2 || true
        fi
    fi
    exit "${status}"
}

harvest::main "$@"
