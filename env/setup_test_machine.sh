#!/usr/bin/env bash
# Installs what the tests need beyond Python: Slurm for the sandbox, nsys, Chromium, linters, a C compiler for the scanner of
# traces. Nothing is fetched but by apt.
#
# usage: env/setup_test_machine.sh [--check] [slurm] [nsys] [chromium] [lint] [compiler] [python]
#
# Without a part: all of them but `python`, which is what `python3 -m venv` needs. --check changes nothing and prints a line a part,
#     slurm ok
#     chromium missing: not installed, and not root
# Exit code 0 unless a part is missing in the end (--check: always 0).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly HERE
readonly DEFAULT_PARTS="slurm nsys chromium lint compiler"
readonly PARTS="${DEFAULT_PARTS} python"
# The second, unprivileged person of the sandbox's tests.
readonly TEST_USER="rlprof-test"
MARK=$(mktemp -d)
readonly MARK
trap 'rm -rf "${MARK}"' EXIT

PATH="${PATH}:/usr/local/sbin:/usr/sbin:/sbin"

setup::packages() {
    case "$1" in
        slurm) echo "slurm-wlm munge iproute2 rsync util-linux procps strace" ;;
        chromium) echo "chromium chromium-driver" ;;
        lint) echo "shellcheck" ;;
        compiler) echo "gcc libc6-dev python3-dev" ;;
        python) echo "python3 python3-venv" ;;
    esac
}

setup::programs() {
    case "$1" in
        slurm) echo "slurmctld slurmd sbatch srun scontrol munged mungekey ip unshare nsenter rsync strace" ;;
        chromium) echo "chromium chromedriver" ;;
        lint) echo "shellcheck" ;;
        compiler) echo "gcc" ;;
        python) echo "python3" ;;
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
    if [ "${part}" = compiler ] && ! "${PYTHON:-python3}" -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2> /dev/null; then
        lacking+=("Python.h")
    fi
    if [ "${part}" = python ] && ! python3 -c 'import ensurepip, venv' 2> /dev/null; then
        lacking+=("python3-venv")
    fi
    [ "${#lacking[@]}" -eq 0 ] || (IFS=,; echo "no ${lacking[*]}" | sed 's/,/, /g')
}

# One line about PART; false when it is missing.
setup::check() {
    local -r part="$1"
    local why

    why=$(setup::lacking "${part}")
    if [ -z "${why}" ]; then
        echo "${part} ok"
        return 0
    elif [ "$(id -u)" != 0 ]; then
        echo "${part} missing: not installed, and not root (${why})"
    else
        echo "${part} missing: not installed (${why}); run env/setup_test_machine.sh ${part}"
    fi
    return 1
}

setup::_apt() {
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 timeout -k 10 1200 apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@"
}

# Once a run: the mark is a file because parts are installed in subshells.
setup::update() {
    local log

    [ ! -e "${MARK}/updated" ] || return 0
    log="${MARK}/update.log"
    common::log "apt-get update"
    setup::_apt update > "${log}" 2>&1 || common::err "apt-get update failed: $(tail -n 5 "${log}")"
    touch "${MARK}/updated"
}

setup::install() {
    local -r part="$1"
    local log why
    local -a packages

    if [ "${part}" = nsys ]; then
        "${HERE}/setup_nsys.sh" > /dev/null
        return
    fi
    command -v apt-get > /dev/null \
        || common::err "no apt-get on $(common::os_release PRETTY_NAME): install by hand what has the programs $(setup::programs "${part}")"
    log="${MARK}/install.log"
    setup::update
    read -ra packages <<< "$(setup::packages "${part}")"
    common::log "installing ${part}: ${packages[*]}"
    setup::_apt install --no-install-recommends "${packages[@]}" > "${log}" 2>&1 \
        || common::err "apt-get install ${packages[*]} failed: $(tail -n 5 "${log}")"
    if [ "${part}" = slurm ] && ! id "${TEST_USER}" > /dev/null 2>&1; then
        useradd --create-home --shell /bin/bash "${TEST_USER}"
    fi
    why=$(setup::lacking "${part}")
    [ -z "${why}" ] || common::err "${part} was installed, but: ${why}"
}

main() {
    local check="" failed="" part
    local -a parts=()

    for part in "$@"; do
        case " --check ${PARTS} " in
            *" ${part} "*) ;;
            *) common::err "unknown argument '${part}' (allowed: --check ${PARTS})" ;;
        esac
        if [ "${part}" = --check ]; then check=1; else parts+=("${part}"); fi
    done
    [ "${#parts[@]}" -gt 0 ] || read -ra parts <<< "${DEFAULT_PARTS}"

    for part in "${parts[@]}"; do
        if [ -z "${check}" ] && [ "$(id -u)" = 0 ] && [ -n "$(setup::lacking "${part}")" ]; then
            # In a subshell: a part that cannot be installed does not keep the others from it.
            (setup::install "${part}") || true
        fi
        setup::check "${part}" || failed=1
    done
    [ -z "${failed}" ] || [ -n "${check}" ]
}

case "${1:-}" in
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" ;;
    *) main "$@" ;;
esac
