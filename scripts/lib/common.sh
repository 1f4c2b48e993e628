# shellcheck shell=bash
# One way to log and one way to fail, for every script of rlprof-ops.

[[ -n ${_RLPROF_COMMON_LOADED-} ]] && return 0
readonly _RLPROF_COMMON_LOADED=1

common::log() {
    printf '[rlprof] %s\n' "$*" >&2
}

# Forbid more: a umask that is stricter already stays as it is.
common::umask() {
    umask "$(printf '%04o' "$(( 8#$(umask) | 8#$1 ))")"
}

# Say what failed and end the script: common::fail CODE MESSAGE...
common::fail() {
    local -r code="$1"
    shift
    printf 'rlprof: %s\n' "$*" >&2
    exit "${code}"
}

# The folder that holds ray.sub. Slurm runs a copy of a batch script from its spool folder, so a script's own
# path says nothing there; Slurm remembers the path that was submitted.
common::home() {
    local -r script="$1"
    local folder

    if [[ -n ${RLPROF_HOME-} ]]; then
        [[ -r ${RLPROF_HOME}/env/defaults.env ]] \
            || common::fail 2 "RLPROF_HOME=${RLPROF_HOME}: no env/defaults.env there. Set it to the folder that holds ray.sub."
        printf '%s\n' "${RLPROF_HOME}"
        return 0
    fi
    folder="$(cd -- "$(dirname -- "${script}")" && pwd)"
    for folder in "${folder}" "$(dirname -- "${folder}")"; do
        if [[ -r ${folder}/env/defaults.env ]]; then
            printf '%s\n' "${folder}"
            return 0
        fi
    done
    common::fail 2 "cannot find the folder that holds ray.sub (looked beside ${script}). Set RLPROF_HOME to it."
}
