#!/usr/bin/env bash
# Runs a program under nsys: again where nsys ends or hangs before the program has begun, in the end without nsys.
#
# usage: bash nsys.sh launch|profile NSYS PATIENCE_S SESSION ON_ERROR COUNT [OPTION]... PROGRAM [ARGUMENT]...
#
#   PATIENCE_S  whole seconds that nsys has to start the program
#   SESSION     what the name of a `launch` session begins with; ours and the try's number follow. Empty for `profile`
#   ON_ERROR    continue: the program starts without nsys after the last try; fail: nsys's exit code is ours
#   COUNT       how many OPTIONs there are
#
# nsys 2023.4 sometimes ends on a busy machine before it has started the program ("Connection to Agent lost", "End of
# file"), or hangs there; Ray would then wait for a worker that never comes. Whoever takes the file `pending` away
# decides: the program when it begins, or this script; a program that comes after its time ends at once.
#
# `nsys launch` and `nsys profile` reset the umask to 0, so the program gets ours back right before it begins. They put
# files into /tmp, whatever TMPDIR says, and leave them there when they are told to end; the program's environment names
# them, so they are written down beside `pending` and removed when nsys is gone.
#
# `pending` holds the program's words, so that nsys's own command line has none of them: `ray stop` sends SIGTERM to
# every process whose command line names a Ray worker, and an nsys that is told to end while it writes a report throws
# it away (seen with 2023.4: whatever was not yet imported is deleted).
set -uo pipefail

readonly NSYS_TRIES=3
readonly NSYS_AROUND="yielded to another nsys, under which this process was started: take one of the two away"
# shellcheck disable=SC2016
readonly NSYS_MADE='"$QUADD_INJECTION_CONFIG" "$QUADD_CUDA_CONFIG" "$QUADD_OS_RUNTIME_CONFIG" "$HOOK_FILE"'
# shellcheck disable=SC2016
readonly NSYS_BEGIN='nsys_mask=$1; shift; [ ! -s "$0" ] || . "$0"; rm -- "$0" 2> /dev/null || exit 1; umask 077; echo "$$" '"${NSYS_MADE}"' > "$0.made"; umask "$nsys_mask"; exec "$@"'
nsys_child="" nsys_made="" nsys_signalled="" nsys_told=""

nsys::_log() {
    printf 'rlprof: %s\n' "$*" >&2
}

# What a launcher tells us is meant for the program. Told to end, nothing is started any more. nsys itself is told only
# while the program has not begun: Slurm signals every process of a step, and a second SIGTERM makes nsys throw away
# what it has recorded.
nsys::_hand_on() {
    local -r name="$1"

    nsys_signalled=yes
    case "${name}" in TERM | INT | HUP | KILL) nsys_told=$(kill -l "${name}") ;; esac
    [[ -n "${nsys_child}" ]] || return 0
    kill -s "${name}" "$(nsys::_program)" 2> /dev/null || true
}

# The pid of the program, else of nsys. The program wrote it down itself.
nsys::_program() {
    local pid=""

    [[ ! -f "${nsys_made}" ]] || read -r pid _ < "${nsys_made}" || true
    printf '%s' "${pid:-${nsys_child}}"
}

# Starts nsys beside this script, so that signals are handed on at once. A job in the background has no input and
# ignores SIGINT and SIGQUIT unless told otherwise.
nsys::_start() {
    (
        trap : INT QUIT
        exec "$@"
    ) <&0 &
    nsys_child=$!
}

# True when nsys still has not begun the program after its time. It is killed then.
nsys::_hangs() {
    local -r pending="$1" begin_within_s="$2"
    local tick

    for (( tick = 0; tick < begin_within_s * 5; tick++ )); do
        [[ -e "${pending}" ]] && kill -0 "${nsys_child}" 2> /dev/null || return 1
        sleep 0.2
    done
    rm -- "${pending}" 2> /dev/null || return 1
    kill -KILL "${nsys_child}" 2> /dev/null
    return 0
}

# Waits for nsys; a signal ends one `wait` and not this function. Sets nsys_code.
nsys::_wait() {
    local code

    wait "${nsys_child}"
    nsys_code=$?
    while [[ -n "${nsys_signalled}" ]]; do
        nsys_signalled=""
        wait "${nsys_child}" 2> /dev/null
        code=$?
        (( code == 127 )) || nsys_code=${code}
    done
    nsys_child=""
}

# Leaves for the manifest what became of this try: whoever waits for the worker may end us before the last one. A
# session's name has no character that JSON would want escaped.
nsys::_note() {
    local -r session="$1" said="$2"

    [[ -n "${session}" && -d "${RLPROF_NODE_DIR:-}/events" ]] || return 0
    printf '{"event": "nsys_failed", "session": "%s", "reason": "%s"}\n' "${session}" "${said}" \
        2> /dev/null >> "${RLPROF_NODE_DIR}/events/notes_$$.jsonl" || true
}

# True under another nsys: a second one takes the first one's ranges away, or does not start. The variable alone tells
# nothing: a driver may hand its environment on to processes that no nsys has started.
nsys::_around() {
    local pid=$$ exe key value

    [[ -n "${NSYS_PROFILING_SESSION_ID:-}" ]] || return 1
    while (( pid > 1 )); do
        exe=$(readlink "/proc/${pid}/exe")
        case "${exe##*/}" in nsys | nsys-launcher) return 0 ;; esac
        while read -r key value; do
            [[ "${key}" != PPid: ]] || break
        done 2> /dev/null < "/proc/${pid}/status" || return 1
        pid=${value}
    done
    return 1
}

# Removes what nsys left in /tmp for the program that is over now.
nsys::_clear() {
    local file

    [[ -f "${nsys_made}" ]] || return 0
    for file in $(< "${nsys_made}"); do
        [[ "${file}" =~ ^/tmp/injection_config_[0-9a-f]+$ && -O "${file}" ]] && rm -f -- "${file}"
    done
    rm -f -- "${nsys_made}"
}

# Writes the words after PENDING into it, as `set -- WORD...` of any shell. False where they do not fit on the disk.
nsys::_write_words() {
    local -r pending="$1" quote="'\\''"
    local word text="set --"
    shift

    for word in "$@"; do
        text+=" '${word//\'/${quote}}'"
    done
    printf '%s\n' "${text}" 2> /dev/null > "${pending}" || {
        : > "${pending}"
        return 1
    }
}

# Runs the words after PENDING and BEGIN_WITHIN_S. Ends with their exit code when the program has begun; else sets
# nsys_said and returns.
nsys::_try() {
    local -r pending="$1" begin_within_s="$2"
    shift 2

    nsys_made="${pending}.made"
    nsys::_start "$@"
    nsys_said=""
    # bash would tell of a child that was killed, wherever it notices.
    if nsys::_hangs "${pending}" "${begin_within_s}" 2> /dev/null; then
        nsys_said="hung for ${begin_within_s} s"
    fi
    nsys::_wait 2> /dev/null
    nsys::_clear
    if [[ -z "${nsys_said}" ]]; then
        rm -- "${pending}" 2> /dev/null || exit "${nsys_code}"
        nsys_said="ended with ${nsys_code}"
    fi
    [[ -z "${nsys_told}" ]] || exit "$(( 128 + nsys_told ))"
}

nsys::main() {
    local -r command="$1" nsys="$2" begin_within_s="$3" session="$4" on_error="$5" count="$6"
    shift 6
    local -r options=("${@:1:count}")
    shift "${count}"
    local failure mask name pending try words

    if nsys::_around; then
        nsys::_log "${NSYS_AROUND}"
        nsys::_note "${session}" "${NSYS_AROUND}"
        [[ "${on_error}" == continue ]] || exit 1
        export RLPROF_NOT_WRAPPED="${NSYS_AROUND}"
        exec "$@"
    fi
    mask=$(umask)
    for name in TERM INT HUP USR1 USR2; do
        # shellcheck disable=SC2064
        trap "nsys::_hand_on ${name}" "${name}"
    done
    trap 'nsys::_hand_on KILL' PWR # `rlprof wrap`, our parent, was killed: the program must not outlive it
    for (( try = 1; try <= NSYS_TRIES; try++ )); do
        pending=$(mktemp "${TMPDIR:-/tmp}/.rlprof-pending-XXXXXX" 2> /dev/null) \
            || pending=$(mktemp /tmp/.rlprof-pending-XXXXXX) || exit 1
        words=("${nsys}" "${command}")
        if [[ "${command}" == launch ]]; then
            export RLPROF_NSYS_SESSION="${session}$$-${try}"
            words+=("--session-new=${RLPROF_NSYS_SESSION}")
        fi
        words+=(${options[@]+"${options[@]}"} /bin/sh -c "${NSYS_BEGIN}" "${pending}" "${mask}")
        nsys::_write_words "${pending}" "$@" || words+=("$@")
        nsys::_try "${pending}" "${begin_within_s}" "${words[@]}"
        failure="nsys ${command} ${nsys_said} before the program began (try ${try} of ${NSYS_TRIES})"
        nsys::_log "${failure}"
        nsys::_note "${session}" "${failure}"
        sleep 0.5
    done
    [[ -z "${nsys_told}" ]] || exit "$(( 128 + nsys_told ))"
    if [[ "${on_error}" != continue ]]; then
        (( nsys_code )) || nsys_code=1
        exit "${nsys_code}"
    fi
    nsys::_log "training goes on unprofiled"
    unset RLPROF_NSYS_SESSION RLPROF_NSYS_RANGE
    export RLPROF_NOT_WRAPPED="nsys ${command} ${nsys_said} before the program began, ${NSYS_TRIES} times; its own words are in the log"
    exec "$@"
}

nsys::main "$@"
