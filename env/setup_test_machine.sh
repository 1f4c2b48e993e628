#!/usr/bin/env bash
# Installs what the tests need beyond Python: Slurm for the sandbox, nsys, Chromium, linters. Nothing is fetched but by apt.
#
# usage: env/setup_test_machine.sh [--check] [slurm] [nsys] [chromium] [lint]
#
# Without a part: all of them. --check changes nothing and prints a line a part,
#     slurm ok
#     chromium missing: not installed, and not root
# Exit code 0 unless an installation failed (--check: always 0).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly HERE
readonly PARTS="slurm nsys chromium lint"
# The second, unprivileged person of the sandbox's tests.
readonly TEST_USER="rlprof-test"
_UPDATED=""

PATH="${PATH}:/usr/local/sbin:/usr/sbin:/sbin"

setup::packages() {
    case "$1" in
        slurm) echo "slurm-wlm munge iproute2 rsync util-linux procps" ;;
        chromium) echo "chromium chromium-driver" ;;
        lint) echo "shellcheck" ;;
    esac
}

setup::programs() {
    case "$1" in
        slurm) echo "slurmctld slurmd sbatch srun scontrol munged mungekey ip unshare nsenter rsync" ;;
        chromium) echo "chromium chromedriver" ;;
        lint) echo "shellcheck" ;;
    esac
}

# Prints why PART cannot be used; nothing when it can.
setup::lacking() {
    local -r part="$1"
    local program
    local -a lacking=()

    if [ "${part}" = nsys ]; then
        "${HERE}/setup_nsys.sh" --check | sed -n 's/^nsys missing: //p' || true
        return 0
    fi
    for program in $(setup::programs "${part}"); do
        command -v "${program}" > /dev/null || lacking+=("${program}")
    done
    if [ "${part}" = slurm ] && ! id "${TEST_USER}" > /dev/null 2>&1; then
        lacking+=("user ${TEST_USER}")
    fi
    [ "${#lacking[@]}" -eq 0 ] || (IFS=,; echo "no ${lacking[*]}" | sed 's/,/, /g')
}

setup::check() {
    local -r part="$1"
    local why

    why=$(setup::lacking "${part}")
    if [ -z "${why}" ]; then
        echo "${part} ok"
    elif [ "$(id -u)" != 0 ]; then
        echo "${part} missing: not installed, and not root (${why})"
    else
        echo "${part} missing: not installed (${why}); run env/setup_test_machine.sh ${part}"
    fi
}

setup::_apt() {
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 timeout -k 10 1200 apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@"
}

setup::install() {
    local -r part="$1"
    local log why
    local -a packages

    [ "$(id -u)" = 0 ] || common::err "not root: cannot install '${part}' ($(setup::lacking "${part}"))"
    if [ "${part}" = nsys ]; then
        "${HERE}/setup_nsys.sh" > /dev/null
        return
    fi
    command -v apt-get > /dev/null \
        || common::err "no apt-get on $(common::os_release PRETTY_NAME): install by hand what has the programs $(setup::programs "${part}")"
    log=$(mktemp)
    if [ -z "${_UPDATED}" ]; then
        common::log "apt-get update"
        setup::_apt update > "${log}" 2>&1 || common::err "apt-get update failed: $(tail -n 5 "${log}")"
        _UPDATED=1
    fi
    read -ra packages <<< "$(setup::packages "${part}")"
    common::log "installing ${part}: ${packages[*]}"
    setup::_apt install --no-install-recommends "${packages[@]}" > "${log}" 2>&1 \
        || common::err "apt-get install ${packages[*]} failed: $(tail -n 5 "${log}")"
    rm -f "${log}"
    if [ "${part}" = slurm ] && ! id "${TEST_USER}" > /dev/null 2>&1; then
        useradd --create-home --shell /bin/bash "${TEST_USER}"
    fi
    why=$(setup::lacking "${part}")
    [ -z "${why}" ] || common::err "${part} was installed, but: ${why}"
}

main() {
    local check="" part
    local -a parts=()

    for part in "$@"; do
        case " --check ${PARTS} " in
            *" ${part} "*) ;;
            *) common::err "unknown argument '${part}' (allowed: --check ${PARTS})" ;;
        esac
        if [ "${part}" = --check ]; then check=1; else parts+=("${part}"); fi
    done
    [ "${#parts[@]}" -gt 0 ] || read -ra parts <<< "${PARTS}"

    for part in "${parts[@]}"; do
        if [ -z "${check}" ] && [ -n "$(setup::lacking "${part}")" ]; then
            setup::install "${part}"
        fi
        setup::check "${part}"
    done
}

case "${1:-}" in
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" ;;
    *) main "$@" ;;
esac
