"""What a node's engines said of themselves, look by look: the rows of all of them, put together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from rlprof_ops.recorder import rows

Integers = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
MOST_LOOKS = 30_000  # of a node that are kept one by one: eight hours


@dataclass(frozen=True)
class EngineLooks:
    """All engines of one node, a row a look. Requests are those at that moment, `cache_permille` is the
    fullest engine's; preempted requests and tokens are those since the look before.
    """

    t_ns: Integers
    running: Counts
    waiting: Counts
    cache_permille: Counts
    preempted: Counts
    made: Floats
    prompt: Floats

    def __len__(self) -> int:
        return len(self.t_ns)

    @property
    def in_flight(self) -> Integers:
        return self.running.astype(np.int64) + self.waiting


def none() -> EngineLooks:
    floats, counts = np.empty(0, np.float32), np.empty(0, np.int32)
    return EngineLooks(np.empty(0, np.int64), counts, counts, counts, counts, floats, floats)


class EngineRows:
    """Gathers the ENGINE rows of a record, block by block, each engine apart."""

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[Integers, npt.NDArray[np.void]]]] = defaultdict(list)

    def add(self, base_ns: int, names: dict[int, str], found: npt.NDArray[np.void]) -> None:
        for number in np.unique(found["engine"]):
            mine = found[found["engine"] == number]
            t_ns = base_ns + mine["t"].astype(np.int64) * rows.TENTH_NS
            self._parts[names.get(int(number), str(number))].append((t_ns, mine))

    def looks(self) -> EngineLooks:
        return _fewer(_together([_of_one(parts) for parts in self._parts.values()]))


def _of_one(parts: list[tuple[Integers, npt.NDArray[np.void]]]) -> EngineLooks:
    """One engine's looks. A counter that falls was begun anew, by an engine that was started again."""
    t_ns = np.concatenate([t for t, _ in parts])
    order = np.argsort(t_ns, kind="stable")
    t_ns = t_ns[order]
    table = np.concatenate([rows_of for _, rows_of in parts])[order]
    gone = np.diff(t_ns, prepend=t_ns[:1]) / 1e9
    counted = table["preemptions"].astype(np.int64)
    grown = np.diff(counted, prepend=counted[:1])
    return EngineLooks(
        t_ns,
        table["running"].astype(np.int32),
        table["waiting"].astype(np.int32),
        table["cache_permille"].astype(np.int32),
        np.where(grown < 0, counted, grown).astype(np.int32),
        (table["tokens_s"] * gone).astype(np.float32),
        (table["prompt_tokens_s"] * gone).astype(np.float32),
    )


_SUMMED = ("running", "waiting", "preempted", "made", "prompt")


def _together(engines: list[EngineLooks]) -> EngineLooks:
    """The engines of a node, which are looked at at the same moments."""
    if len(engines) < 2:
        return engines[0] if engines else none()
    t_ns, place = np.unique(np.concatenate([e.t_ns for e in engines]), return_inverse=True)
    columns = {}
    for name in _SUMMED:
        values = np.concatenate([getattr(e, name) for e in engines])
        columns[name] = np.bincount(place, weights=values, minlength=len(t_ns)).astype(values.dtype)
    cache = np.zeros(len(t_ns), np.int32)
    np.maximum.at(cache, place, np.concatenate([e.cache_permille for e in engines]))
    return EngineLooks(t_ns=t_ns, cache_permille=cache, **columns)


def _fewer(looks: EngineLooks) -> EngineLooks:
    """At most `MOST_LOOKS` rows: of neighbours the last one's requests, and the sum of what was done."""
    every = -(-len(looks) // MOST_LOOKS)
    if every < 2:
        return looks
    begins = np.arange(0, len(looks), every)
    last = np.minimum(begins + every, len(looks)) - 1
    summed = ("preempted", "made", "prompt")
    columns = {}
    for field in fields(looks):
        values = getattr(looks, field.name)
        columns[field.name] = np.add.reduceat(values, begins) if field.name in summed else values[last]
    return EngineLooks(**columns)
