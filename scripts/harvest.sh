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
    for candidate in ${RLPROF_PYTHON:+"${RLPROF_PYTHON}"} python3 python; do
        if "${candidate}" -c 'import click, yaml' 2>/dev/null; then
            printf '%s' "${candidate}"
            return
        fi
    done
    harvest::err "no Python with click and PyYAML found (tried ${RLPROF_PYTHON:+${RLPROF_PYTHON}, }python3, python); set RLPROF_PYTHON"
}

# The run folder that the first argument names, as `rlprof harvest` understands it.
harvest::_folder() {
    "$1" -c 'import sys; from rlprof_ops.job.run_folder import run_folder; print(run_folder(sys.argv[1]))' "$2" 2>/dev/null || true
}

harvest::main() {
    [[ $# -ge 1 ]] || harvest::err "usage: harvest.sh <run folder | job id> [options of rlprof harvest]"
    local home python
    home="$(harvest::_home)"
    [[ -d "${home}/python/rlprof_ops" ]] || harvest::err "rlprof-ops is not in ${home}; set RLPROF_HOME to its checkout"
    python="$(harvest::_python)"
    export PYTHONPATH="${home}/python${PYTHONPATH:+:${PYTHONPATH}}"
    if [[ "${RLPROF_REPORT_SECONDS:-120}" == 0 ]] || ! "${python}" -c 'import msgspec, numpy, pyarrow, rich, jinja2' 2>/dev/null; then
        exec "${python}" -m rlprof_ops harvest "$@"
    fi
    local status=0 folder
    "${python}" -m rlprof_ops harvest "$@" || status=$?
    folder="$(harvest::_folder "${python}" "$1")"
    # A report that cannot be made takes nothing from the harvest: its exit code is the one that counts.
    if [[ -n "${folder}" ]] && compgen -G "${folder}/profiles/*/*/*/*" >/dev/null; then
        timeout "${RLPROF_REPORT_SECONDS:-120}" "${python}" -m rlprof_ops report "${folder}" >&2 || true
    fi
    exit "${status}"
}

harvest::main "$@"
