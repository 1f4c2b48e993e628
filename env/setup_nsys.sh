#!/usr/bin/env bash
# Puts a working nsys 2023.4 on a Debian machine from Debian's own packages, without touching its package lists.
#
# usage: env/setup_nsys.sh [--prefix DIR] [--check]
#
#   --prefix DIR   where the tree goes (default /opt/rlprof/nsys); DIR/bin/nsys is the program
#   --check        change nothing; print one line and exit 0 when a usable nsys is there, else 1
#
# A usable nsys that is already on PATH is left alone. 2022.x is not usable: it hangs on short programs.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly VERSION_WANTED="2023.4."
readonly SUITE="trixie"
readonly DEFAULT_PREFIX="/opt/rlprof/nsys"
readonly LINK="/usr/local/bin/nsys"
readonly CALL_TIMEOUT_S=60
PREFIX="${DEFAULT_PREFIX}"
WORK=""

# Prints the version ("2023.4.4") that PROGRAM reports; nothing when it does not answer.
nsys::version() {
    local -r program="$1"

    timeout -k 2 20 "${program}" --version 2>/dev/null | grep -oE '[0-9]{4}\.[0-9]+\.[0-9]+' | head -n 1 || true
}

# The first nsys worth keeping: on PATH, else in our prefix.
nsys::present() {
    local program version

    for program in "$(command -v nsys || true)" "${PREFIX}/bin/nsys"; do
        [ -x "${program}" ] || continue
        version=$(nsys::version "${program}")
        case "${version}" in
            "" | 2022.* | 2021.* | 2020.*) ;;
            *) printf '%s %s\n' "${program}" "${version}" && return 0 ;;
        esac
    done
    return 1
}

# Downloads the packages into the folder DEBS, with lists and caches of their own.
nsys::download() {
    local -r debs="$1"
    local codename source version
    local -a apt

    codename=$(common::os_release VERSION_CODENAME)
    source=$(common::own_source "${codename}") \
        || common::err "no apt source for '${codename} main' in /etc/apt: nothing to derive '${SUITE} non-free' from. Add Debian's source, or put NVIDIA's own nsys (2023.4 or newer) on PATH."
    mkdir -p "${WORK}/lists/partial" "${WORK}/cache/archives/partial" "${debs}"
    {
        common::source_stanza "${source%%|*}" "${SUITE}" non-free "${source#*|}"
        common::source_stanza "${source%%|*}" "${codename}" main "${source#*|}"
    } > "${WORK}/nsys.sources"
    apt=(-q -o "Dir::Etc::sourcelist=${WORK}/nsys.sources" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::Lists=${WORK}/lists" -o "Dir::Cache=${WORK}/cache" -o APT::Sandbox::User=root
        -o Acquire::Languages=none -o Acquire::Retries=3 -o Acquire::http::Timeout=30 -o APT::Update::Error-Mode=any)

    common::log "reading the package lists of ${SUITE} non-free and ${codename} main (kept in a scratch folder)"
    timeout 300 apt-get "${apt[@]}" update > "${WORK}/apt.log" 2>&1 \
        || common::err "apt-get update of ${WORK}/nsys.sources failed: $(tail -n 5 "${WORK}/apt.log")"
    version=$(apt-cache "${apt[@]}" madison nsight-systems | awk -v want="${VERSION_WANTED}" '$3 ~ "^" want { print $3; exit }')
    [ -n "${version}" ] \
        || common::err "nsight-systems ${VERSION_WANTED}x is not in ${SUITE} non-free for $(dpkg --print-architecture). Put NVIDIA's own nsys (2023.4 or newer) on PATH."
    common::log "downloading nsight-systems ${version} (about 190 MB) and libssh-4"
    (cd "${debs}" && timeout 900 apt-get "${apt[@]}" download \
        "nsight-systems=${version}" "nsight-systems-target=${version}" "libssh-4/${codename}" >> "${WORK}/apt.log" 2>&1) \
        || common::err "apt-get download failed: $(tail -n 5 "${WORK}/apt.log")"
}

# Unpacks DEBS into the folder TREE and repairs what Debian's layout breaks.
nsys::unpack() {
    local -r debs="$1" tree="$2"
    local deb host multiarch

    mkdir -p "${tree}"
    for deb in "${debs}"/*.deb; do
        common::log "unpacking ${deb##*/}"
        dpkg -x "${deb}" "${tree}"
    done
    multiarch=$(cd "${tree}/usr/lib" && for deb in *-linux-gnu; do printf '%s' "${deb}"; done)
    host=$(cd "${tree}/usr/lib/nsight-systems" && for deb in host-linux-*; do printf '%s' "${deb}"; done)

    # nsys looks for its importer beside its real path, where the package does not put it.
    ln -sfn "../../nsight-systems/${host}" "${tree}/usr/lib/${multiarch}/nsight-systems/${host}"
    # The packaged libssh.so points at the system's libssh-4; here it has to be the unpacked one.
    ln -sfn "../../${multiarch}/libssh.so.4" "${tree}/usr/lib/nsight-systems/${host}/libssh.so"
    [ -e "${tree}/usr/lib/nsight-systems/${host}/libssh.so" ] \
        || common::err "libssh.so.4 is not where ${tree}/usr/lib/nsight-systems/${host}/libssh.so points"

    mkdir -p "${tree}/bin"
    ln -sfn ../usr/lib/nsight-systems/bin/nsys "${tree}/bin/nsys"
}

# One profile, one export and one session window with the nsys PROGRAM; every call bounded.
nsys::_try() {
    local -r program="$1" dir="$2"
    local -r session="setup$$"
    local launch taken=""

    mkdir -p "${dir}"
    timeout -k 5 "${CALL_TIMEOUT_S}" "${program}" profile -t nvtx -s none --cpuctxsw=none -o "${dir}/profile" sleep 0.2 || return 1
    [ -s "${dir}/profile.nsys-rep" ] || return 1
    timeout -k 5 "${CALL_TIMEOUT_S}" "${program}" export --type sqlite -o "${dir}/profile.sqlite" "${dir}/profile.nsys-rep" || return 1
    [ "$(head -c 15 "${dir}/profile.sqlite")" = "SQLite format 3" ] || return 1

    # The program lives until the window is taken, however slow the machine, but never for ever.
    # shellcheck disable=SC2016
    timeout -k 5 "${CALL_TIMEOUT_S}" "${program}" launch "--session-new=${session}" -t nvtx \
        sh -c 'for i in $(seq 300); do [ ! -e "$0" ] || exit 0; sleep 0.1; done' "${dir}/done" &
    launch=$!
    nsys::_window "${program}" "${session}" "${dir}/window" && taken=1
    touch "${dir}/done"
    wait "${launch}" && [ -n "${taken}" ]
}

nsys::_window() {
    local -r program="$1" session="$2" output="$3"

    for _ in $(seq 100); do
        timeout -k 5 20 "${program}" sessions list 2>/dev/null | grep " ${session}\$" && break
        sleep 0.1
    done
    timeout -k 5 "${CALL_TIMEOUT_S}" "${program}" start "--session=${session}" -o "${output}" -s none --cpuctxsw=none || return 1
    timeout -k 5 "${CALL_TIMEOUT_S}" "${program}" stop "--session=${session}" || return 1
    [ -s "${output}.nsys-rep" ]
}

# Ends what a hung nsys left of our own tries: processes whose TMPDIR is in our scratch folder.
nsys::_reap() {
    local environ pid

    for environ in /proc/[0-9]*/environ; do
        pid=${environ#/proc/} && pid=${pid%/environ}
        if [ "${pid}" = "$$" ] || [ "${pid}" = "${BASHPID}" ]; then
            continue
        elif tr '\0' '\n' 2>/dev/null < "${environ}" | grep -qF "TMPDIR=${WORK}/try"; then
            kill -KILL "${pid}" 2>/dev/null || true
        fi
    done
}

nsys::verify() {
    local -r program="$1"
    local attempt dir

    for attempt in 1 2 3; do
        dir="${WORK}/try${attempt}"
        mkdir -p "${dir}"
        if TMPDIR="${dir}" nsys::_try "${program}" "${dir}/out" > "${dir}/log" 2>&1; then
            common::log "checked: profile, export and a session window work"
            return 0
        fi
        nsys::_reap
        common::log "try ${attempt} of ${program} did not work: $(tr '\r' '\n' < "${dir}/log" | tail -n 3 | tr '\n' ' ')"
    done
    return 1
}

# Puts the default tree's nsys on PATH; a tree elsewhere stays private.
nsys::link() {
    local -r target="${DEFAULT_PREFIX}/bin/nsys"

    if [ "${PREFIX}" != "${DEFAULT_PREFIX}" ] || [ ! -x "${target}" ] || [ ! -w "${LINK%/*}" ]; then
        return 0
    elif [ -e "${LINK}" ] && [ ! -L "${LINK}" ]; then
        common::log "${LINK} is a file of somebody else; left as it is. Use ${target}."
    elif [ "$(readlink "${LINK}" || true)" != "${target}" ]; then
        ln -sfn "${target}" "${LINK}.$$" && mv -fT "${LINK}.$$" "${LINK}"
    fi
}

nsys::install() {
    local -r parent=$(dirname "${PREFIX}")

    [ "$(id -u)" = 0 ] || common::err "not root: cannot write ${PREFIX} and ${LINK}. Run this script as root."
    [ "$(common::os_release ID)" = debian ] \
        || common::err "this is $(common::os_release PRETTY_NAME): only Debian's own package source leads to ${SUITE} non-free. Put NVIDIA's own nsys (2023.4 or newer) on PATH."
    [ "$(dpkg --print-architecture)" = amd64 ] \
        || common::err "the tree of $(dpkg --print-architecture) was never tried, only amd64. Put NVIDIA's own nsys (2023.4 or newer) on PATH."
    mkdir -p "${parent}"
    WORK=$(mktemp -d "${parent}/.nsys.XXXXXX")
    trap 'nsys::_reap; rm -rf "${WORK}"' EXIT

    nsys::download "${WORK}/debs"
    nsys::unpack "${WORK}/debs" "${WORK}/tree"
    nsys::verify "${WORK}/tree/bin/nsys" || common::err "the unpacked nsys does not work here; nothing was installed"
    chmod 755 "${WORK}/tree"
    [ ! -e "${PREFIX}" ] || mv "${PREFIX}" "${WORK}/old"
    mv -T "${WORK}/tree" "${PREFIX}"
    nsys::link
}

main() {
    local check="" found

    while [ $# -gt 0 ]; do
        case "$1" in
            --prefix) [ $# -ge 2 ] || common::err "--prefix needs a folder"; PREFIX="$2"; shift ;;
            --check) check=1 ;;
            -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; return 0 ;;
            *) common::err "unknown argument '$1' (allowed: --prefix DIR, --check)" ;;
        esac
        shift
    done

    if found=$(nsys::present); then
        [ -n "${check}" ] || command -v nsys > /dev/null || nsys::link
        printf 'nsys ok: %s\n' "${found}"
        return 0
    elif [ -n "${check}" ]; then
        printf 'nsys missing: no nsys newer than 2022 on PATH or in %s\n' "${PREFIX}"
        return 1
    fi

    # One at a time: two set-ups started together would both download, and the second finds the first one's.
    mkdir -p "$(dirname "${PREFIX}")"
    exec 9> "$(dirname "${PREFIX}")/.nsys.lock"
    flock -w 1200 9 || common::err "another set-up of ${PREFIX} has been running for 20 minutes"
    nsys::present > /dev/null || nsys::install 9>&-
    found=$(nsys::present) || common::err "installed, but ${PREFIX}/bin/nsys does not answer"
    printf 'nsys ok: %s\n' "${found}"
}

main "$@"
