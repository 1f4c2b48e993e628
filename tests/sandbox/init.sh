#!/usr/bin/env bash
# PID 1 of a box: makes it look like a machine of its own, starts its daemons when told to, and reaps orphans.
# usage: init.sh login|node NAME SANDBOX_DIR SHM_SIZE [VISIBLE_DIR]...
set -euo pipefail

readonly role="$1" name="$2" dir="$3" shm_size="$4"
shift 4

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
    local visible

    for visible in "$@"; do
        mkdir -p "${tmp}/${visible#/tmp/}"
        mount --bind "${visible}" "${tmp}/${visible#/tmp/}"
    done
    mount --rbind "${tmp}" /tmp
    mount -t tmpfs -o "mode=1777,size=${shm_size}" shm /dev/shm
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
[ "${role}" = login ] || init::private_tmp "$@"
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
