# shellcheck shell=bash
# What Slurm knows of this job: its nodes, their addresses, free ports on this host, the srun line.

[[ -n ${_RLPROF_SLURM_LOADED-} ]] && return 0
readonly _RLPROF_SLURM_LOADED=1
# Folders for reports: ours, and NeMo RL's. Each is made and mounted, from where sbatch was called.
readonly OUTPUT_VARIABLES="RLPROF_OUTPUT_DIR NRL_TORCH_PROFILE_DIR"
readonly BESIDE=rlprof-beside  # name of each step of ours but that of the supervisors; slurm/client.py knows it too

# Write the run folder into the job's comment, after what its user wrote there, so that whoever knows the job's id finds
# it (slurm/client.py reads it). Any user may change the comment of an own job; a Slurm that refuses is no error.
slurm::record_run_folder() {
    local -r folder="$1"
    local job comment

    job="$(slurm::_alone)"
    comment="$(scontrol show job "${job}" 2> /dev/null | sed -n 's/^ *Comment=//p' | head -n 1 || true)"
    [[ ${comment} != '(null)' ]] || comment=""
    comment="${comment%%rlprof:/*}"
    comment="${comment%; }"
    timeout 10 scontrol update "JobId=${job}" "Comment=${comment:+${comment}; }rlprof:${folder}" > /dev/null 2>&1 \
        || common::log "Slurm did not take the run folder as the job's comment: give rlprof the folder instead of the job id"
}

# This job's id for Slurm's commands, which take that of an array's last element for the whole array.
slurm::_alone() {
    printf '%s' "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-${SLURM_JOB_ID}}"
}

# squeue with hidden partitions, and without the filters that its user may have in the environment (SQUEUE_STATES,
# SQUEUE_PARTITION …), as client.squeue of the package.
slurm::squeue() {
    (
        unset "${!SQUEUE_@}"
        exec timeout 10 squeue --all --noheader "$@"
    )
}

# The id of the supervisors' step, nothing while there is none: of the steps that are not beside it the first, for Slurm
# numbers steps as their sruns reach it.
slurm::step() {
    slurm::squeue --steps "--jobs=$(slurm::_alone)" "--format=%i %j" 2> /dev/null \
        | awk -v beside="${BESIDE}" '
            $1 ~ /\.[0-9]+$/ && $2 != beside {
                number = substr($1, index($1, ".") + 1) + 0
                if (first == "" || number < least) { first = $1; least = number }
            }
            END { printf "%s", first }' || true
}

# The IPv4 address by which the others reach the head, this host: on RLPROF_INTERFACE where that is set, else what Slurm
# itself uses to reach it, else what the host's resolver says. Many hosts resolve their own name to 127.0.1.1, and
# NodeAddr may be such a name: then the address of the route that leads out.
slurm::address() {
    local -r node="$1"
    local address

    if [[ -n ${RLPROF_INTERFACE-} ]]; then
        slurm::_address_on "${RLPROF_INTERFACE}" "${node}"
        return
    fi
    address="$(scontrol show node "${node}" 2> /dev/null | sed -n 's/^.*NodeAddr=\([^ ]*\).*$/\1/p' | head -n 1 || true)"
    address="${address:-${node}}"
    if [[ ! ${address} =~ ^[0-9]+(\.[0-9]+){3}$ ]]; then
        address="$(getent ahostsv4 "${address}" | awk '$1 !~ /^127\./ { print $1; exit }' || true)"
    fi
    [[ -n ${address} ]] || address="$(ip -4 route get 192.0.2.1 2> /dev/null | sed -n 's/^.* src \([0-9.]*\).*$/\1/p' | head -n 1 || true)"
    [[ -n ${address} ]] || common::fail 1 "node ${node}: no IPv4 address found (asked Slurm for NodeAddr, getent, and for a route)." \
        "Name the network in RLPROF_INTERFACE: an interface such as ib0, or 10.1.0.0/16."
    printf '%s\n' "${address}"
}

# This host's first IPv4 address on an interface or in a network.
slurm::_address_on() {
    local -r wanted="$1" node="$2"
    local name address known=""

    while read -r _ name _ address _; do
        known+=" ${name%%@*}=${address}"
        if [[ ${name%%@*} == "${wanted}" ]] || slurm::_is_within "${address%/*}" "${wanted}"; then
            printf '%s\n' "${address%/*}"
            return 0
        fi
    done < <(ip -4 -o addr show)
    common::fail 2 "RLPROF_INTERFACE=${wanted}: node ${node} has no IPv4 address there. It has:${known:- none (is iproute2 installed?)}."
}

# Whether an IPv4 address lies in a network such as 10.1.0.0/16.
slurm::_is_within() {
    local -r address="$1" network="$2"
    local bits="${network##*/}"

    [[ ${network} =~ ^[0-9]+(\.[0-9]+){3}/[0-9]+$ ]] && (( 10#${bits} <= 32 )) || return 1
    (( 10#${bits} == 0 || ( $(slurm::_number "${address}") ^ $(slurm::_number "${network%/*}") ) >> (32 - 10#${bits}) == 0 ))
}

slurm::_number() {
    local a b c d
    IFS=. read -r a b c d <<< "$1"
    common::numbers a b c d
    printf '%d' "$(( (a << 24) + (b << 16) + (c << 8) + d ))"
}

# Ports somebody listens on in this host, one a line.
slurm::_listening_ports() {
    local port
    awk '$4 == "0A" { split($2, part, ":"); print part[length(part)] }' /proc/net/tcp /proc/net/tcp6 2> /dev/null \
        | sort -u | while read -r port; do printf '%d\n' "0x${port}"; done
}

# Two adjacent free ports below the range the kernel hands out by itself, spread by job id so that two jobs that
# start at once on a shared node try different ones first.
slurm::free_ports() {
    local -r job="$1"
    local floor base try
    local -A taken=()

    while read -r base; do taken["${base}"]=1; done < <(slurm::_listening_ports)
    read -r floor _ < /proc/sys/net/ipv4/ip_local_port_range
    common::numbers floor
    (( floor > 12000 )) || floor=32768
    for (( try = 0; try < 500; try++ )); do
        base=$(( 10000 + ((job * 2 + try * 14) % (floor - 10002)) ))
        if [[ -z ${taken[${base}]-} && -z ${taken[$((base + 1))]-} ]]; then
            printf '%d %d\n' "${base}" "$((base + 1))"
            return 0
        fi
    done
    common::fail 1 "no two adjacent free ports between 10000 and ${floor} on $(hostname)."
}

# Fill the array SRUN with the line that starts one supervisor on every node, and TASK_LINE with what is run there, in the
# container where srun does not lead into it. Reads knobs only.
slurm::srun_line() {
    local -r home="$1" run_folder="$2"

    # Without --unbuffered: it gives the tasks a terminal, so colours and broken lines would stand in slurm-<job>.out.
    SRUN=(srun "--nodes=${SLURM_JOB_NUM_NODES}" "--ntasks=${SLURM_JOB_NUM_NODES}" --ntasks-per-node=1 --mpi=none --wait=0)
    if [[ -n ${CPUS_PER_WORKER} ]]; then
        SRUN+=("--cpus-per-task=${CPUS_PER_WORKER}")
    else
        SRUN+=(--whole)
    fi
    # A node that fails tells the others; Slurm's own way would kill them before they have drained.
    SRUN+=(--kill-on-bad-exit=0)
    slurm::_split RLPROF_SRUN_ARGS
    SRUN+=(${WORDS[@]+"${WORDS[@]}"})
    # Our one task a node would get one GPU of them all: srun takes these for wishes of its own, and where it does not, the
    # job's own wish for each task holds for its steps too (Slurm 22.05), unless the step asks for all GPUs of its nodes.
    slurm::_gpus_of_all_tasks
    unset SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_GPU_BIND SLURM_NTASKS_PER_GPU
    # `sbatch --export=NONE` holds for its steps too, and would keep from them what this script has exported.
    unset SLURM_EXPORT_ENV SRUN_EXPORT_ENV
    TASK_LINE=(bash "${home}/scripts/node.sh")
    slurm::_container_arguments "${home}" "${run_folder}"
    SRUN+=("${TASK_LINE[@]}")
}

# Nodes of different sizes cannot be asked for in one step, so there it is said.
slurm::_gpus_of_all_tasks() {
    local -r wish="${SLURM_GPUS_PER_TASK-}" here="${SLURM_GPUS_ON_NODE-}" tasks="${SLURM_NTASKS-}"
    local -r each="${wish##*:}"

    [[ ${each} =~ ^[0-9]+$ && ${here} =~ ^[0-9]+$ && ${tasks} =~ ^[0-9]+$ ]] || return 0
    if (( each * tasks == here * SLURM_JOB_NUM_NODES )); then
        SRUN+=("--gpus-per-node=${here}")
    else
        common::log "--gpus-per-task: the nodes have different numbers of GPUs, and Slurm may show Ray fewer; ask for --gpus-per-node"
    fi
}

# Fill the array WORDS with the words of a variable, quotes and backslashes as a shell has them; nothing is expanded.
slurm::_split() {
    local -r name="$1"
    local said

    WORDS=()
    [[ -n ${!name} ]] || return 0
    said="$(xargs -r printf '%s\n' <<< "${!name}" 2> /dev/null)" || common::fail 2 "${name}=${!name}: a quote that does not end."
    [[ -z ${said} ]] || mapfile -t WORDS <<< "${said}"
}

slurm::container_runtime() {
    printf '%s' "${RLPROF_CONTAINER_RUNTIME:-${CONTAINER:+pyxis}}"
}

# The words that lead into the container. RLPROF_MOUNTS_CHOSEN is what attach.sh takes for the same surroundings.
slurm::_container_arguments() {
    local -r home="$1" run_folder="$2"
    local runtime mounts variables=RLPROF_HOME,RLPROF_RUN_DIR
    local -a extra=()

    runtime="$(slurm::container_runtime)"
    [[ -n ${runtime} && ${runtime} != none ]] || return 0
    mounts="$(slurm::_mounts "${home}" "${run_folder}")" || exit "$?"
    export RLPROF_MOUNTS_CHOSEN="${mounts}"
    case "${runtime}" in
        pyxis)
            variables+="${UV_CACHE_DIR_OVERRIDE:+,UV_CACHE_DIR}"
            SRUN+=("--container-image=${CONTAINER}" "--container-name=rlprof-${RLPROF_JOB}" "--container-mounts=${mounts}"
                --no-container-mount-home "--container-workdir=${SLURM_SUBMIT_DIR}" "--container-env=${variables}")
            [[ ${RLPROF_CONTAINER_WRITABLE} != 1 ]] || SRUN+=(--container-writable)
            ;;
        apptainer)
            slurm::_split RLPROF_APPTAINER_ARGS
            extra=(${WORDS[@]+"${WORDS[@]}"})
            [[ ${RLPROF_CONTAINER_WRITABLE} != 1 ]] || extra+=(--writable-tmpfs)
            TASK_LINE=(apptainer exec ${extra[@]+"${extra[@]}"} --bind "${mounts}" --pwd "${SLURM_SUBMIT_DIR}" "${CONTAINER}" "${TASK_LINE[@]}")
            ;;
    esac
}

# MOUNTS and our own as one list for pyxis and apptainer, parents before what lies in them: a mount hides what was mounted
# below it before. Where MOUNTS has a place of ours already, the user's counts.
slurm::_mounts() {
    local -r home="$1" run_folder="$2"
    local mount place rest number=0
    local -a asked=() lines=()
    local -A taken=()

    # shellcheck disable=SC2153
    IFS=, read -ra asked <<< "${MOUNTS}"
    for mount in ${asked[@]+"${asked[@]}"}; do
        [[ -n ${mount} ]] || continue
        rest="${mount#*:}"
        place="${rest%%:*}"
        taken["${place%/}"]=1
        lines+=("$(slurm::_depth "${place}")"$'\t'"${number}"$'\t'"${mount}")
        number=$(( number + 1 ))
    done
    while IFS= read -r place; do
        [[ -z ${taken[${place}]-} ]] || continue
        taken["${place}"]=1
        [[ ${place} != *[,:]* ]] \
            || common::fail 2 "${place}: a path with a comma or a colon cannot be mounted into a container. Give it another name."
        lines+=("$(slurm::_depth "${place}")"$'\t'"${number}"$'\t'"${place}:${place}")
        number=$(( number + 1 ))
    done < <(slurm::_our_folders "${home}" "${run_folder}")
    printf '%s\n' ${lines[@]+"${lines[@]}"} | sort -n -k1,1 -k2,2 | cut -f 3- | paste -s -d ,
}

slurm::_depth() {
    local -r slashes="${1//[!\/]/}"
    printf '%d' "${#slashes}"
}

# What a job needs of the host wherever it runs, one path a line: the node folder, without which reports lie in the
# container's own /tmp and go with it; this checkout, the run folder, those of earlier attempts and where sbatch was called;
# the request, the place for reports, uv's cache; a virtual environment of the host with the Python it was made from; an
# nsys of the host.
slurm::_our_folders() {
    local -r home="$1" run_folder="$2"
    local path name

    {
        printf '%s\n' "${RLPROF_NODE_ROOT}" "${home}" "${run_folder}" "${SLURM_SUBMIT_DIR}" "${UV_CACHE_DIR_OVERRIDE}" \
            ${EARLIER_FOLDERS[@]+"${EARLIER_FOLDERS[@]}"}
        [[ -z ${RLPROF_REQUEST} ]] || dirname -- "$(slurm::absolute "${RLPROF_REQUEST}")"
        for name in ${OUTPUT_VARIABLES}; do
            [[ -z ${!name-} ]] || slurm::absolute "${!name}"
        done
        if [[ -n ${RLPROF_VENV} && -x ${RLPROF_VENV}/bin/python ]]; then
            printf '%s\n' "${RLPROF_VENV}"
            slurm::_installs "${RLPROF_VENV}/bin/python" "${RLPROF_VENV}"
        fi
        if [[ ${RLPROF_NSYS} == /* && -x ${RLPROF_NSYS} ]]; then
            slurm::_installs "${_RLPROF_NSYS_GIVEN:-${RLPROF_NSYS}}"
            # Packages that part target and host put a link beside the one to the other.
            for path in "$(slurm::_prefix "$(readlink -f -- "${RLPROF_NSYS}")")"/host-linux-*; do
                [[ ! -L ${path} ]] || readlink -f -- "${path}"
            done
        fi
    } | while IFS= read -r path; do
        path="${path%/}"
        case "${path}" in
            # The image has its own of these.
            "" | /usr | /usr/bin | /usr/lib | /usr/local | /usr/local/bin | /bin | /etc | /lib | /lib64 | /opt | /sbin | /var) ;;
            *) printf '%s\n' "${path}" ;;
        esac
    done
}

# The install of a program, and that of each link on the way to it: an installer's name for the newest of a version may be
# a link of its own. Links below the second folder are left out.
slurm::_installs() {
    local -r but_below="${2-}"
    local link="$1" path

    while true; do
        [[ -n ${but_below} && ${link} == "${but_below}"/* ]] || slurm::_prefix "${link}"
        [[ -L ${link} ]] || break
        path="$(readlink -- "${link}")"
        [[ ${path} == /* ]] || path="$(realpath -sm -- "$(dirname -- "${link}")/${path}")"
        link="${path}"
    done
    slurm::_prefix "$(readlink -f -- "$1")"
}

# The folder of an install that has PREFIX/bin/program or PREFIX/target-linux-x64/program.
slurm::_prefix() {
    dirname -- "$(dirname -- "$1")"
}

# A path as sbatch's caller meant it.
slurm::absolute() {
    local -r path="$1"
    if [[ ${path} == /* ]]; then
        printf '%s\n' "${path}"
    else
        printf '%s/%s\n' "${SLURM_SUBMIT_DIR}" "${path}"
    fi
}
