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

# Check that variables which are set hold whole numbers, and write those without leading zeros, which would mean base 8.
# What arithmetic or an index gets from outside goes through here: bash evaluates a value there, so that `x[$(command)]` runs.
common::numbers() {
    local name value

    for name in "$@"; do
        value="${!name-}"
        [[ -n ${value} ]] || continue
        [[ ${value} =~ ^[0-9]{1,15}$ ]] || common::fail 2 "${name} is '${value}': a whole number is expected, such as 120."
        printf -v "${name}" '%s' "$(( 10#${value} ))"
    done
}

# Say what failed and end the script: common::fail CODE MESSAGE...
common::fail() {
    local -r code="$1"
    shift
    printf 'rlprof: %s\n' "$*" >&2
    exit "${code}"
}
