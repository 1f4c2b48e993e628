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

# Prints "URIS|SIGNED_BY" of the machine's own entry for the suite CODENAME with the component main.
common::own_source() {
    local -r codename="$1"
    local file

    for file in /etc/apt/sources.list.d/*.sources; do
        [ -r "${file}" ] || continue
        awk -v want="${codename}" '
            function flush() {
                if (!off && uris && (" " suites " ") ~ (" " want " ") && (" " components " ") ~ / main /) { print uris "|" signed; found = 1; exit }
                uris = suites = components = signed = ""; off = 0
            }
            /^[[:space:]]*$/ { flush(); next }
            /^#/ { next }
            { key = tolower($1); value = $0; sub(/^[^:]*:[[:space:]]*/, "", value) }
            key == "uris:" { uris = value }
            key == "suites:" { suites = value }
            key == "components:" { components = value }
            key == "signed-by:" { signed = value }
            key == "enabled:" { off = (tolower(value) == "no") }
            END { if (!found) flush() }' "${file}"
    done | head -n 1 | grep . && return 0

    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -r "${file}" ] || continue
        awk -v want="${codename}" '
            $1 != "deb" { next }
            {
                signed = ""; i = 2
                if ($i ~ /^\[/) { while (1) { o = $i; gsub(/[][]/, "", o); if (o ~ /^signed-by=/) signed = substr(o, 11); if ($i ~ /\]$/ || i == NF) break; i++ } i++ }
                uri = $i; suite = $(i + 1); rest = " "
                for (j = i + 2; j <= NF; j++) rest = rest $j " "
                if (suite == want && rest ~ / main /) { print uri "|" signed; exit }
            }' "${file}"
    done | head -n 1 | grep .
}

common::source_stanza() {
    local -r uris="$1" suite="$2" component="$3" signed_by="$4"

    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\n' "${uris}" "${suite}" "${component}"
    [ -z "${signed_by}" ] || printf 'Signed-By: %s\n' "${signed_by}"
    printf '\n'
}
