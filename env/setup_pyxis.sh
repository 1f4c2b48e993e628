#!/usr/bin/env bash
# Builds pyxis and enroot from their source trees, installs both below /usr/local, and makes an image, for
# tests/scripts/test_real_pyxis.py. The trees stay as they are; enroot's may lack its submodules.
#
# usage: env/setup_pyxis.sh PYXIS_TREE ENROOT_TREE [IMAGE]        (default /opt/rlprof/pyxis.sqsh)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[ "$#" -ge 2 ] || common::err "usage: env/setup_pyxis.sh PYXIS_TREE ENROOT_TREE [IMAGE]"
readonly PYXIS="$1" ENROOT="$2" IMAGE="${3:-/opt/rlprof/pyxis.sqsh}"
readonly NODES="n1 n2"  # the sandbox's
readonly FOLDERS="data runtime cache temp"
# Python's package brings the libraries of any Python of this machine; nsys needs libelf, and libpfm4 to import its captures.
readonly IN_THE_IMAGE="elfutils,libpfm4,libstdc++6,python3"
WORK=""

pyxis::packages() {
    local -r packages="gcc make libc6-dev libbsd-dev libslurm-dev squashfs-tools parallel jq zstd debootstrap"

    common::log "installing ${packages}"
    timeout 300 apt-get -q -y update > "${WORK}/apt.log" 2>&1 || common::err "apt-get update failed: $(tail -n 5 "${WORK}/apt.log")"
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive timeout 900 apt-get -q -y install --no-install-recommends ${packages} > "${WORK}/apt.log" 2>&1 \
        || common::err "apt-get install failed: $(tail -n 5 "${WORK}/apt.log")"
}

pyxis::build() {
    cp -r -- "${PYXIS}" "${WORK}/pyxis"
    common::log "building pyxis"
    make -C "${WORK}/pyxis" clean install > "${WORK}/pyxis.log" 2>&1 || common::err "pyxis: $(tail -n 5 "${WORK}/pyxis.log")"
}

# With this machine's C library, headers and libbsd instead of the submodules: the stamps say that those are made, and
# without a repository none is fetched. makeself is for `enroot bundle` alone.
pyxis::build_enroot() {
    cp -r -- "${ENROOT}" "${WORK}/enroot"
    mkdir -p "${WORK}/enroot/deps/makeself" "${WORK}/enroot/deps/linux-headers"
    touch "${WORK}/enroot/deps/makeself/.stamp" "${WORK}/enroot/deps/linux-headers/.stamp"
    common::log "building enroot"
    GIT_DIR=/dev/null CPPFLAGS="-D_GNU_SOURCE -include bsd/string.h" \
        make -C "${WORK}/enroot" FORCE_GLIBC=1 DEPS= LDLIBS=-l:libbsd.so install > "${WORK}/enroot.log" 2>&1 \
        || common::err "enroot: $(tail -n 5 "${WORK}/enroot.log")"
}

# The sandbox's nodes have one file system: each gets folders of its own, in which every user may write.
pyxis::configure_enroot() {
    local node folder

    for node in ${NODES}; do
        for folder in ${FOLDERS}; do
            mkdir -p "/var/lib/enroot/${node}/${folder}"
            chmod 1777 "/var/lib/enroot/${node}/${folder}"
        done
    done
    for folder in ${FOLDERS}; do
        # shellcheck disable=SC2016 # expanded by enroot on the node
        printf 'ENROOT_%s_PATH /var/lib/enroot/$(hostname)/%s\n' "${folder^^}" "${folder}"
    done > /usr/local/etc/enroot/enroot.conf.d/rlprof-tests.conf
}

pyxis::image() {
    local codename source

    codename=$(common::os_release VERSION_CODENAME)
    source=$(common::own_source "${codename}") || common::err "no apt source for '${codename} main' in /etc/apt"
    common::log "making ${IMAGE} of ${codename} with ${IN_THE_IMAGE}"
    timeout 900 debootstrap --variant=minbase "--include=${IN_THE_IMAGE}" "${codename}" "${WORK}/root" "${source%%|*}" \
        > "${WORK}/debootstrap.log" 2>&1 || common::err "debootstrap: $(tail -n 5 "${WORK}/debootstrap.log")"
    # Only root may make devices; a container's are its node's.
    rm -rf "${WORK}"/root/dev/* "${WORK}"/root/var/cache/apt/* "${WORK}"/root/var/lib/apt/lists/*
    mkdir -p "$(dirname "${IMAGE}")"
    mksquashfs "${WORK}/root" "${WORK}/image" -comp zstd -quiet -no-progress
    chmod 644 "${WORK}/image"
    mv -- "${WORK}/image" "${IMAGE}"
}

[ "$(id -u)" = 0 ] || common::err "not root: cannot install into /usr/local"
[ -f "${PYXIS}/pyxis_srun.c" ] || common::err "PYXIS_TREE=${PYXIS}: no source tree of pyxis (it has no pyxis_srun.c)"
[ -f "${ENROOT}/enroot.in" ] || common::err "ENROOT_TREE=${ENROOT}: no source tree of enroot (it has no enroot.in)"
WORK=$(mktemp -d)
trap 'rm -rf "${WORK}"' EXIT
pyxis::packages
pyxis::build
pyxis::build_enroot
pyxis::configure_enroot
pyxis::image
printf 'pyxis ok: %s; enroot ok: %s; image ok: %s\n' /usr/local/lib/slurm/spank_pyxis.so "$(enroot version)" "${IMAGE}"
