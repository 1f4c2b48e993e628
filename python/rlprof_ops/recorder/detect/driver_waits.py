"""What the driver waits for where no collective tells it: a rollout server that makes no token, or resources
that no node of Ray's has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlprof_ops.recorder.samples.engines import EngineSample
from rlprof_ops.recorder.samples.family_work import WORKING_CORES
from rlprof_ops.words import counted, duration

_GENERATION = "generation"


def held_engine(
    engines: Mapping[str, Iterable[EngineSample]],
    names: Mapping[tuple[str, int], str],
    least_s: float,
    phase: str = "",
) -> str:
    """The server of `engines` (by node) that has stood still the longest, as a sentence; "" for none.

    One stands where a process of it is stopped, or where it has requests or does not answer and does not
    compute, and where it has made no token for `least_s` besides. `names`: what a process is called, by node
    and pid. `phase`: the one that is open: a server that stands may be waited for in a weight update as well.
    """
    stand = [(node, each) for node, found in engines.items() for each in found if _stands(each, least_s)]
    if not stand:
        return ""
    node, engine = max(stand, key=lambda found: (found[1].stopped > 0, found[1].idle_s))
    name = names.get((node, engine.pid)) or engine.url.removesuffix("/metrics")
    where = f"node {node}, pid {engine.pid}" if engine.pid else f"node {node}"
    asked = [counted(engine.running, "request") + " running"] if engine.running else []
    asked += [counted(engine.waiting, "request") + " waiting"] if engine.waiting else []
    has = f"has {' and '.join(asked)} and " if asked else "has "
    why = f": its process {engine.stopped} is stopped (SIGSTOP)" if engine.stopped else ""
    why = why or (": its metrics do not answer" if engine.silent else "")
    more = f" (and {len(stand) - 1} more such servers)" if len(stand) > 1 else ""
    made = f"made no token for {duration(engine.idle_s * 1e9)}"
    awaits = f"in {phase} for" if phase and phase != _GENERATION else f"for {_GENERATION} of"
    return f"the driver waits {awaits} {name} ({where}), whose engine {has}{made}{why}{more}"


def _stands(engine: EngineSample, least_s: float) -> bool:
    if engine.idle_s < least_s or engine.tokens_s:
        return False
    asked = engine.running or engine.waiting or engine.silent
    return bool(engine.stopped or (asked and engine.cores < WORKING_CORES))
