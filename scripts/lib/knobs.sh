# shellcheck shell=bash
# Reads knobs: env/defaults.env and what overrides it. A line is taken literally, nothing in it is evaluated.

[[ -n ${_RLPROF_KNOBS_LOADED-} ]] && return 0
readonly _RLPROF_KNOBS_LOADED=1

# Export every NAME=value of a file whose NAME is not set yet.
knobs::_fill_from() {
    local -r file="$1"
    local line name number=0

    # In a locale of UTF-8 a byte that is none would take the line break after it along.
    while IFS= LC_ALL=C read -r line || [[ -n ${line} ]]; do
        number=$(( number + 1 ))
        line="${line%$'\r'}"
        # Neither pattern goes to the end of the line, where bytes that the locale does not know would match nothing.
        if [[ ! ${line} =~ ^([A-Za-z_][A-Za-z0-9_]*)= ]]; then
            # What stands after the equals sign may be a secret.
            [[ ${line} =~ ^[[:space:]]*(#|$) ]] \
                || common::log "${file}:${number}: '${line%%=*}' does not begin a line NAME=value, so it sets nothing"
            continue
        fi
        name="${BASH_REMATCH[1]}"
        if [[ -z ${!name+x} ]]; then
            export "${name}=${line#*=}"
        fi
    done < "${file}"
}

# The environment wins, then the site, then the trainer, then the defaults.
knobs::load() {
    local -r home="$1"
    local site trainer

    site="${RLPROF_SITE_ENV:-${home}/env/site.env}"
    if [[ -n ${RLPROF_SITE_ENV-} && ! -r ${site} ]]; then
        common::fail 2 "RLPROF_SITE_ENV=${site}: cannot be read."
    fi
    if [[ -r ${site} ]]; then
        knobs::_fill_from "${site}"
    fi
    if [[ -n ${RLPROF_TRAINER-} ]]; then
        trainer="${home}/env/trainer_${RLPROF_TRAINER}.env"
        [[ ${RLPROF_TRAINER} != */* && -r ${trainer} ]] \
            || common::fail 2 "RLPROF_TRAINER=${RLPROF_TRAINER}: no such file as env/trainer_${RLPROF_TRAINER}.env. Known:$(knobs::_trainers "${home}")."
        knobs::_fill_from "${trainer}"
    fi
    knobs::_fill_from "${home}/env/defaults.env"
    common::numbers RLPROF_DRAIN_SECONDS RLPROF_HARVEST_SECONDS RLPROF_REPORT_SECONDS SLURM_CPUS_ON_NODE SLURM_HET_SIZE \
        SLURM_JOB_ID SLURM_JOB_NUM_NODES SLURM_RESTART_COUNT
}

knobs::_trainers() {
    local file
    for file in "$1"/env/trainer_*.env; do
        file="${file##*/trainer_}"
        printf ' %s' "${file%.env}"
    done
}
