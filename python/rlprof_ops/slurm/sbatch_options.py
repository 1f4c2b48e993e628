"""Which words of a command line are sbatch's: options of ours are taken out, everything else goes to
sbatch as written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rlprof_ops.errors import UsageError
from rlprof_ops.words import closest

# man sbatch of Slurm 22.05 and 24.11; sites add their own by SPANK plugins, so this list is for advice, not a
# limit.
_OPTIONS = """
account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container
container-id contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot
dependency distribution error exclude exclusive export export-file extra extra-node-info get-user-env gid
gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help hint hold ignore-pbs
input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
mem-per-gpu mincpus network nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core
ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output overcommit oversubscribe parsable
partition prefer priority profile propagate qos quiet reboot requeue reservation resv-ports segment signal
sockets-per-node spread-job stepmgr switches test-only thread-spec threads-per-core time time-min tmp
tres-bind tres-per-task uid usage use-min-nodes verbose version wait wait-all-nodes wckey wrap
"""
# Environment variables that sbatch reads (man sbatch, INPUT ENVIRONMENT VARIABLES).
_VARIABLES = """
SBATCH_ACCOUNT SBATCH_ACCTG_FREQ SBATCH_BATCH SBATCH_CLUSTERS SBATCH_CONSTRAINT SBATCH_CONTAINER
SBATCH_CORE_SPEC SBATCH_CPUS_PER_GPU SBATCH_DELAY_BOOT SBATCH_DISTRIBUTION SBATCH_ERROR SBATCH_EXCLUSIVE
SBATCH_GPUS SBATCH_GPUS_PER_NODE SBATCH_GPUS_PER_TASK SBATCH_GPU_BIND SBATCH_GPU_FREQ SBATCH_GRES
SBATCH_GRES_FLAGS SBATCH_HINT SBATCH_IGNORE_PBS SBATCH_INPUT SBATCH_JOB_NAME SBATCH_MEM_BIND
SBATCH_MEM_PER_CPU SBATCH_MEM_PER_GPU SBATCH_MEM_PER_NODE SBATCH_NETWORK SBATCH_NO_KILL SBATCH_NO_REQUEUE
SBATCH_OPEN_MODE SBATCH_OUTPUT SBATCH_OVERCOMMIT SBATCH_PARTITION SBATCH_POWER SBATCH_PROFILE SBATCH_QOS
SBATCH_REQUEUE SBATCH_REQ_SWITCH SBATCH_RESERVATION SBATCH_SEGMENT_SIZE SBATCH_SIGNAL SBATCH_SPREAD_JOB
SBATCH_THREADS_PER_CORE SBATCH_THREAD_SPEC SBATCH_TIMELIMIT SBATCH_USE_MIN_NODES SBATCH_WAIT_ALL_NODES
SBATCH_WCKEY
"""
KNOWN, VARIABLES = tuple(_OPTIONS.split()), tuple(_VARIABLES.split())
_REFUSED = {
    "export": (
        "the job's environment is made by rlprof: give --set NAME=value, or --set NAME to take one from this"
        " shell"
    ),
    "export-file": "the job's environment is made by rlprof: give --set NAME=value",
    "get-user-env": "the job's environment is made by rlprof: give --set NAME=value",
    "array": "the tasks of an array would share one run folder; submit once for each",
    "wrap": "the script is ray.sub; give the command after --",
    "test-only": "use --dry-run to see the line; or give sbatch --test-only that line yourself",
    "parsable": "rlprof sets it itself",
    "quiet": "rlprof reads what sbatch says",
}
_REFUSED_SHORT = {"a": "array", "W": "wait", "Q": "quiet"}


@dataclass(frozen=True)
class Words:
    """A command line taken apart: `ours` for our own parser, `sbatch` as written, `command` after `--`
    (None without one).
    """

    ours: tuple[str, ...]
    sbatch: tuple[str, ...]
    command: tuple[str, ...] | None


def split(argv: Sequence[str], options: Mapping[str, bool]) -> Words:
    """Take `argv` apart. `options`: our own options as typed (`--request`, `-N`) -> whether a value follows.

    Before `--` only options and their values may stand, so a word after an option of sbatch is its value.
    Raises UsageError for a word that belongs to nothing, a misspelt option of ours, and what sbatch must not
    be told.
    """
    before, command = _at_dashes(list(argv))
    ours: list[str] = []
    others: list[str] = []
    index = 0
    while index < len(before):
        word = before[index]
        name, equals, _ = word.partition("=")
        follows = before[index + 1] if index + 1 < len(before) else None
        index += 1
        if not word.startswith("-") or word == "-":
            raise UsageError(
                f"{word!r}: the command goes after `--`, as in: rlprof submit -N 2 -- python train.py"
            )
        key = _ours(word, name, options)
        if key is None:
            _check_foreign(name, options)
        target = others if key is None else ours
        target.append(word)
        has_value = bool(equals) if word.startswith("--") else len(word) > 2
        takes = follows is not None and not follows.startswith("-") if key is None else options[key]
        if takes and not has_value and follows is not None:
            target.append(follows)
            index += 1
    return Words(tuple(ours), tuple(others), command)


def _at_dashes(argv: list[str]) -> tuple[list[str], tuple[str, ...] | None]:
    if "--" not in argv:
        return argv, None
    at = argv.index("--")
    return argv[:at], tuple(argv[at + 1 :])


def _ours(word: str, name: str, options: Mapping[str, bool]) -> str | None:
    if word.startswith("--"):
        return name if name in options else None
    return word[:2] if word[:2] in options else None


def _check_foreign(name: str, options: Mapping[str, bool]) -> None:
    if not name.startswith("--"):
        refused = _REFUSED_SHORT.get(name[1:2])
        if refused:
            raise UsageError(f"{name}: {_REFUSED.get(refused, 'use --' + refused)}")
        return
    bare = name[2:]
    if bare in _REFUSED:
        raise UsageError(f"{name}: {_REFUSED[bare]}")
    if bare in KNOWN:
        return
    ours = [option for option in options if option.startswith(name) and len(bare) > 2]
    if ours:  # sbatch would take it for the beginning of one of its own
        raise UsageError(f"no such option: {name}. Did you mean {ours[0]}?")
    if any(known.startswith(bare) for known in KNOWN if len(bare) > 2):
        return
    near = nearest(name, options)
    if near in options:
        raise UsageError(f"no such option: {name}. Did you mean {near}?")


def nearest(name: str, options: Collection[str]) -> str | None:
    """The option, of ours or of sbatch, that a misspelt one most likely means."""
    return closest(name, [*options, *("--" + known for known in KNOWN)], cutoff=0.75)


def names_of(words: Sequence[str]) -> set[str]:
    """The options that stand in sbatch's words, e.g. {"--time", "-p"}."""
    return {
        word.partition("=")[0] if word.startswith("--") else word[:2]
        for word in words
        if word.startswith("-")
    }


def value_of(words: Sequence[str], long: str, short: str = "") -> str | None:
    """The last value that an option has in sbatch's words; None when it is not there."""
    found = None
    for index, word in enumerate(words):
        follows = words[index + 1] if index + 1 < len(words) else None
        if word == long or (short and word == short):
            found = follows
        elif word.startswith(long + "="):
            found = word.partition("=")[2]
        elif short and word.startswith(short) and not word.startswith("--"):
            found = word[len(short) :].removeprefix("=")
    return found


def seconds_of(limit: str) -> int | None:
    """A time limit of sbatch in seconds: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S (man sbatch, --time). None for
    anything else.
    """
    match = re.fullmatch(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})", limit)
    if match is None:
        return None
    parts = [int(part) for part in match["rest"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, (*parts, 0)[:2]
    return ((int(match["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
