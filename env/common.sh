# What the set-up scripts of this folder share: one way to log, one way to fail. Sourced, never run.
# shellcheck shell=bash
[ -z "${_SETUP_COMMON_SH:-}" ] || return 0
readonly _SETUP_COMMON_SH=1

common::log() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
}

common::err() {
    printf '%s: error: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# The value of one key of /etc/os-release, empty when there is none.
common::os_release() {
    local -r key="$1"

    # shellcheck disable=SC1091
    (. /etc/os-release 2>/dev/null && printf '%s' "${!key:-}") || true
}
