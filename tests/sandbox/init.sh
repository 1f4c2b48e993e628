#!/usr/bin/env bash
# PID 1 of a box: makes it look like a machine of its own, starts its daemons when told to, and reaps orphans.
# usage: init.sh login|node NAME SANDBOX_DIR SHM_SIZE SLURM_DIR [VISIBLE_DIR]... -- [OPENED_DIR]...
set -euo pipefail

readonly role="$1" name="$2" dir="$3" shm_size="$4" slurm="$5"
shift 5
visible=()
while [ "$1" != -- ]; do
    visible+=("$1")
    shift
done
shift
readonly visible opened=("$@")

# A mount that lived on in our namespace would outlive its own sandbox.
init::hide_other_sandboxes() {
    local mount_point
    local -a mount_points

    # The list first: it shifts under who reads it while unmounting.
    mapfile -t mount_points < <(awk '{ print $5 }' /proc/self/mountinfo)
    for mount_point in "${mount_points[@]}"; do
        case "${mount_point}" in
            "${dir}"/*) ;;
            "${dir%/*}"/*) umount -l "${mount_point}" ;;
        esac
    done
}

init::private_tmp() {
    local -r tmp="${dir}/nodes/${name}/tmp"
    local folder

    for folder in "${visible[@]}"; do
        mkdir -p "${tmp}/${folder#/tmp/}"
        mount --bind "${folder}" "${tmp}/${folder#/tmp/}"
    done
    mount --rbind "${tmp}" /tmp
    mount -t tmpfs -o "mode=1777,size=${shm_size}" shm /dev/shm
}

# Puts an empty folder that everybody may pass in the place of one that only root may enter, such as /root, and in it
# only the way to the tests' Python and checkout.
init::open_closed() {
    local -r aside="${dir}/aside/${name}"
    local entry folder

    for entry in "${opened[@]}"; do
        folder="${entry%/*}"
        if ! mountpoint -q "${aside}${folder}"; then
            mkdir -p "${aside}${folder}"
            mount --rbind "${folder}" "${aside}${folder}"
            mount -t tmpfs -o mode=711,size=64m opened "${folder}"
        fi
        mkdir "${entry}"
        mount --rbind "${aside}${entry}" "${entry}"
    done
}

# Another Slurm in the place of this machine's: its programs, and the plug-ins that they look for there.
init::other_slurm() {
    local place

    [ -n "${slurm}" ] || return 0
    for place in /usr/bin/s* /usr/sbin/slurm*-wlm /usr/lib/*/slurm-wlm; do
        [ ! -e "${slurm}${place}" ] || mount --bind "${slurm}${place}" "${place}"
    done
}

init::login_daemons() {
    local -r munge="${dir}/munge"

    setpriv --reuid munge --regid munge --init-groups munged --foreground --key-file "${munge}/key" --socket "${munge}/socket" \
        --pid-file "${munge}/pid" --log-file "${munge}/log" --seed-file "${munge}/seed" &
    for _ in $(seq 200); do
        [ ! -S "${munge}/socket" ] || break
        sleep 0.02
    done
    slurmctld -D -i >> "${dir}/ctl/stderr" 2>&1 &
}

hostname "${name}"
init::hide_other_sandboxes
mount --bind "${dir}/etc" /etc/slurm
mount --bind "${dir}/hosts/${name}" /etc/hosts
[ ! -e /etc/resolv.conf ] || mount --bind "${dir}/resolv.conf" /etc/resolv.conf
init::open_closed
init::other_slurm
[ "${role}" = login ] || init::private_tmp
ip link set lo up
cd /

echo ready
read -r _
exec < /dev/null > /dev/null

if [ "${role}" = login ]; then
    init::login_daemons
else
    slurmd -D >> "${dir}/nodes/${name}/stderr" 2>&1 &
fi

# Bash reaps every orphan that PID 1 inherits while it waits.
set +e
while true; do
    sleep infinity &
    wait $!
done
