#!/usr/bin/env bash
# Puts the Slurm of the next Debian release into a folder beside this machine's own, for tests that take the sandbox with
# `slurm=DIR`. Nothing else of the machine changes: its programs find the newer C library in that folder.
#
# usage: env/setup_newer_slurm.sh [DIR]        (default /opt/rlprof/slurm)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly SUITE="trixie"
readonly PREFIX="${1:-/opt/rlprof/slurm}"
WORK=""

# With an empty list of what is installed, so that every library comes along.
slurm::download() {
    local -r debs="$1"
    local codename source
    local -a apt

    codename=$(common::os_release VERSION_CODENAME)
    source=$(common::own_source "${codename}") \
        || common::err "no apt source for '${codename} main' in /etc/apt: nothing to derive '${SUITE} main' from."
    mkdir -p "${WORK}/lists/partial" "${debs}/partial"
    : > "${WORK}/status"
    common::source_stanza "${source%%|*}" "${SUITE}" main "${source#*|}" > "${WORK}/slurm.sources"
    apt=(-q -y -o "Dir::Etc::sourcelist=${WORK}/slurm.sources" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::Lists=${WORK}/lists" -o "Dir::State::status=${WORK}/status" -o "Dir::Cache=${WORK}/cache"
        -o "Dir::Cache::archives=${debs}" -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3
        -o Acquire::http::Timeout=30 -o APT::Update::Error-Mode=any -o APT::Install-Recommends=false)
    mkdir -p "${WORK}/cache"
    common::log "downloading slurmctld, slurmd and slurm-client of ${SUITE} with their libraries"
    timeout 300 apt-get "${apt[@]}" update > "${WORK}/apt.log" 2>&1 \
        || common::err "apt-get update of ${WORK}/slurm.sources failed: $(tail -n 5 "${WORK}/apt.log")"
    timeout 900 apt-get "${apt[@]}" install --download-only slurmctld slurmd slurm-client patchelf >> "${WORK}/apt.log" 2>&1 \
        || common::err "apt-get install --download-only failed: $(tail -n 5 "${WORK}/apt.log")"
}

# The programs' loader and libraries are those of the folder, wherever they are mounted.
slurm::unpack() {
    local -r debs="$1" tree="$2"
    local deb program libraries loader

    mkdir -p "${tree}"
    for deb in "${debs}"/*.deb; do
        dpkg -x "${deb}" "${tree}"
    done
    libraries=$(cd "${tree}" && for deb in usr/lib/*-linux-gnu; do printf '%s' "${deb}"; done)
    loader=$(cd "${tree}/${libraries}" && for deb in ld-linux-*.so.?; do printf '%s' "${deb}"; done)
    for program in "${tree}"/usr/bin/{sacct,salloc,sattach,sbatch,sbcast,scancel,scontrol,sdiag,sinfo,sprio,squeue,srun,sstat,strigger} \
        "${tree}"/usr/sbin/slurm*-wlm; do
        "${tree}/${libraries}/${loader}" --library-path "${tree}/${libraries}" "${tree}/usr/bin/patchelf" \
            --set-interpreter "${PREFIX}/${libraries}/${loader}" \
            --force-rpath --set-rpath "${PREFIX}/${libraries}/slurm-wlm:${PREFIX}/${libraries}" "${program}"
    done
    # Over /usr/bin/s* of the machine goes only what is patched.
    find "${tree}/usr/bin" -type f ! -newer "${WORK}/status" -delete
    find "${tree}/usr/bin" -type l -delete
}

[ "$(id -u)" = 0 ] || common::err "not root: cannot write ${PREFIX}"
[ "$(common::os_release ID)" = debian ] || common::err "this is $(common::os_release PRETTY_NAME), not Debian"
[ ! -e "${PREFIX}" ] || common::err "${PREFIX} is there already: $("${PREFIX}/usr/sbin/slurmctld-wlm" -V 2> /dev/null || echo 'no Slurm')"
mkdir -p "$(dirname "${PREFIX}")"
WORK=$(mktemp -d "$(dirname "${PREFIX}")/.slurm.XXXXXX")
trap 'rm -rf "${WORK}"' EXIT
slurm::download "${WORK}/debs"
slurm::unpack "${WORK}/debs" "${WORK}/tree"
chmod 755 "${WORK}/tree"
mv -T "${WORK}/tree" "${PREFIX}"
printf 'slurm ok: %s %s\n' "${PREFIX}" "$("${PREFIX}/usr/sbin/slurmctld-wlm" -V)"
