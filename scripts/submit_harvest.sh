#!/usr/bin/env bash
# Submits harvest and report of a running job's folder as a job that begins when that one has ended, and prints its number:
#   scripts/submit_harvest.sh <run folder>
# Inside a Slurm job, with the job's knobs in the environment; where sbatch refuses: its words, and exit code 1.
set -euo pipefail

RLPROF_HOME="${RLPROF_HOME:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}"
# shellcheck source=scripts/lib/common.sh
source "${RLPROF_HOME}/scripts/lib/common.sh"
# shellcheck source=scripts/lib/knobs.sh
source "${RLPROF_HOME}/scripts/lib/knobs.sh"
# shellcheck source=scripts/lib/slurm.sh
source "${RLPROF_HOME}/scripts/lib/slurm.sh"
# shellcheck source=scripts/lib/harvest_job.sh
source "${RLPROF_HOME}/scripts/lib/harvest_job.sh"

[[ $# == 1 && -d $1 ]] || common::fail 2 "usage: submit_harvest.sh <run folder>"
[[ -n ${SLURM_JOB_ID-} ]] || common::fail 2 "submit_harvest.sh runs inside a Slurm job."
knobs::load "${RLPROF_HOME}"
harvest_job::submit "${RLPROF_HOME}" "$1"
