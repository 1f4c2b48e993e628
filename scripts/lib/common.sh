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
