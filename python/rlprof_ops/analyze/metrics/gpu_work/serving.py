"""Prefill and decode apart, as far as a trace of an engine tells.

The engines name each pass of the model: vLLM `execute_context_2(512)_generation_30(30)` (requests and tokens
of prefill, then of decode; some builds write more into it), SGLang `step[DECODE bs=32]`. The GPU work that a
pass launched is then prefill's, decode's, or mixed where the pass had both. Where no pass is named, attention
kernels tell which they are for, where their names do (FlashInfer's BatchDecode and BatchPrefill, paged
attention), and how much was launched as CUDA graphs, as engines launch decode; nothing else is told.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
from msgspec import Struct

from rlprof_ops.analyze.columns import MEMCPY, Ints, Trace, codes_where, distinct
from rlprof_ops.analyze.metrics.intervals import union
from rlprof_ops.analyze.metrics.kernels import launch_moments, phase_codes
from rlprof_ops.analyze.metrics.phases import Segment

PREFILL, DECODE, MIXED, GRAPH = "prefill", "decode", "mixed", "CUDA graphs"
PASSES, KERNELS, LAUNCHES = "passes", "attention kernels", "launches"  # by what it is told
POINTS = 40  # of the batch over the phase
_ROWS = 1 << 17

_VLLM = re.compile(
    r"execute_(?:\d+_)?context_(\d+)\((?:sq)?(\d+)[^)]*\)_generation_(\d+)\((?:sq)?(\d+)[^)]*\)"
)
_SGLANG = re.compile(r"step\[(\w+) bs=(\d+)(?: toks=(\d+))?")
_SGLANG_KINDS = {
    "EXTEND": PREFILL, "SPLIT_PREFILL": PREFILL, "DRAFT_EXTEND": PREFILL,
    "DECODE": DECODE, "TARGET_VERIFY": DECODE, "MIXED": MIXED,
}  # fmt: skip
_DECODES = re.compile(r"batch_?decode|decode_?(attention|kernel)|_decode_|paged_attention(?!.*prefill)", re.I)
_PREFILLS = re.compile(r"batch_?prefill|prefill_?(attention|kernel)|context_attention|extend_attention", re.I)
_LAUNCHES_GRAPH = re.compile(r"GraphLaunch")


class Pass(Struct, frozen=True):
    """What an engine says of one pass: its kind, the requests that it decodes, and its tokens, -1 untold."""

    kind: str
    decoding: int
    prefilled: int = -1


class ServingTotal(Struct, frozen=True):
    """GPU work of one kind in one phase of one trace; `count` is of passes, kernels or graphs, by what tells
    it. `decoding` (requests) and `prefilled` (tokens) are sums over the passes; `batch`: requests decoded at
    a time, over the phase.
    """

    phase: str
    kind: str
    told_by: str
    count: int
    total_ns: int
    decoding: int = 0
    prefilled: int = 0
    batch: tuple[float, ...] = ()


def told(name: str) -> Pass | None:
    """What the name of a range says of a pass of the model; None of other ranges, and of an idle pass."""
    found = _VLLM.search(name)
    if found:
        requests, tokens, decoding, _ = (int(number) for number in found.groups())
        if not requests and not decoding:
            return None
        kind = MIXED if requests and decoding else PREFILL if requests else DECODE
        return Pass(kind, decoding, tokens if requests else 0)
    found = _SGLANG.match(name)
    kind = _SGLANG_KINDS.get(found[1], "") if found else ""
    if not found or not kind:
        return None
    tokens = int(found[3]) if found[3] else -1
    return Pass(kind, int(found[2]) if kind == DECODE else 0, 0 if kind == DECODE else tokens)


def serving_totals(trace: Trace, segments: tuple[Segment, ...]) -> tuple[ServingTotal, ...]:
    """Prefill, decode and mixed GPU work by phase; nothing where nothing tells it."""
    if not len(trace.gpu):
        return ()
    passes = _passes(trace)
    if passes:
        return _by_passes(trace, segments, passes)
    return (*_by_kernels(trace, segments), *_by_graphs(trace, segments))


def _passes(trace: Trace) -> list[tuple[int, int, Pass]]:
    """(start, end, what it says) of every pass, the outer one of two that name the same."""
    known = {code: said for code in distinct(trace.ranges.name).tolist() if (said := told(trace.names[code]))}
    if not known:
        return []
    rows = np.flatnonzero(np.isin(trace.ranges.name, list(known)))
    start, end = trace.ranges.start[rows], trace.ranges.end[rows]
    found: list[tuple[int, int, Pass]] = []
    reach = -1
    for i in np.lexsort((-end, start)).tolist():
        if int(start[i]) >= reach:
            found.append((int(start[i]), int(end[i]), known[int(trace.ranges.name[rows[i]])]))
            reach = int(end[i])
    return found


def _by_passes(
    trace: Trace, segments: tuple[Segment, ...], passes: list[tuple[int, int, Pass]]
) -> tuple[ServingTotal, ...]:
    starts, ends = (np.array([p[i] for p in passes], np.int64) for i in (0, 1))
    phase, phases = phase_codes(starts, segments)
    of_pass = np.concatenate([_pass_of(part, starts, ends) for part in _asked(trace)])
    totals: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, (_, _, said) in enumerate(passes):
        key = phases[int(phase[i])], said.kind
        members[key].append(i)
        for j, value in enumerate((1, 0, said.decoding, max(said.prefilled, 0))):
            totals[key][j] += value
    for key, numbers in members.items():
        totals[key][1] = _ran(trace, np.flatnonzero(np.isin(of_pass, numbers)))
    rows = []
    for (name, kind), (count, ran, decoding, prefilled) in sorted(
        totals.items(), key=lambda item: -item[1][1]
    ):
        shown = kind == DECODE or (kind == MIXED and (name, DECODE) not in totals)
        decodes = [p for p, code in zip(passes, phase.tolist(), strict=True) if phases[code] == name]
        batch = _batch([p for p in decodes if p[2].decoding], segments, name) if shown else ()
        rows.append(ServingTotal(name, kind, PASSES, count, ran, decoding, prefilled, batch))
    return tuple(rows)


def _asked(trace: Trace) -> Iterator[Ints]:
    """When each piece of GPU work was launched, some rows at a time."""
    moments = launch_moments(trace)
    for first in range(0, len(trace.gpu), _ROWS):
        yield moments(slice(first, first + _ROWS))


def _pass_of(asked: Ints, starts: Ints, ends: Ints) -> Ints:
    """(n,) number of the pass that each of n moments lies in, -1 where in none."""
    place = np.searchsorted(starts, asked, side="right") - 1
    return np.where((place >= 0) & (asked < ends[np.maximum(place, 0)]), place, -1)


def _ran(trace: Trace, rows: Ints) -> int:
    """How long any of that work ran."""
    start = trace.gpu.start[rows]
    return union(start, start + trace.gpu.duration[rows]).length


def _batch(
    passes: list[tuple[int, int, Pass]], segments: tuple[Segment, ...], phase: str
) -> tuple[float, ...]:
    """Requests decoded at a time in `POINTS` equal parts of the phase, from its first pass to its last; with
    several stretches of the phase, their mean. A part without a pass is as the one before it.
    """
    stretches = [(s.start, s.end) for s in segments if s.phase == phase] or [(passes[0][0], passes[-1][1])]
    decoded, spent = np.zeros(POINTS), np.zeros(POINTS)
    starts = [start for start, _, _ in passes]
    for begin, end in stretches:
        inside = passes[bisect_left(starts, begin) : bisect_left(starts, end)]
        for start, stop, said in inside:
            middle = ((start + stop) / 2 - inside[0][0]) / max(inside[-1][1] - inside[0][0], 1)
            point = min(int(POINTS * middle), POINTS - 1)
            decoded[point] += said.decoding * (stop - start)
            spent[point] += stop - start
    known = np.flatnonzero(spent)
    if not len(known):
        return ()
    held = known[np.maximum(np.searchsorted(known, np.arange(POINTS), side="right") - 1, 0)]
    return tuple(round(value, 2) for value in (decoded[held] / spent[held]).tolist())


def _by_kernels(trace: Trace, segments: tuple[Segment, ...]) -> list[ServingTotal]:
    decodes = codes_where(trace.names, lambda name: _DECODES.search(name) is not None)
    prefills = codes_where(trace.names, lambda name: _PREFILLS.search(name) is not None) & ~decodes
    found = []
    for kind, codes in ((PREFILL, prefills), (DECODE, decodes)):
        rows = np.flatnonzero(codes[trace.gpu.name] & (trace.gpu.kind != MEMCPY))
        found += _totals(trace, segments, rows, kind, KERNELS, len)
    return found


def _by_graphs(trace: Trace, segments: tuple[Segment, ...]) -> list[ServingTotal]:
    """Work that came as CUDA graphs, by what launched it; `count` is of the graphs."""
    graphs = codes_where(trace.names, lambda name: _LAUNCHES_GRAPH.search(name) is not None)
    if not graphs.any() or not len(trace.launches):
        return []
    index = trace.launches.index
    mine = []
    for first in range(0, len(trace.gpu), _ROWS):
        row = index.rows(trace.gpu.correlation[first : first + _ROWS])
        by_graph = (row >= 0) & graphs[trace.launches.name[np.maximum(row, 0)]]
        mine.append(first + np.flatnonzero(by_graph))
    rows = np.concatenate(mine)
    return _totals(
        trace, segments, rows, GRAPH, LAUNCHES, lambda part: len(np.unique(trace.gpu.correlation[part]))
    )


def _totals(
    trace: Trace,
    segments: tuple[Segment, ...],
    rows: Ints,
    kind: str,
    told_by: str,
    counted: Callable[[Ints], int],
) -> list[ServingTotal]:
    """By phase, of some rows of GPU work, as time in which any of it ran."""
    if not len(rows):
        return []
    codes, phases = phase_codes(launch_moments(trace)(rows), segments)
    found = []
    for code in distinct(codes).tolist():
        part = rows[codes == code]
        found.append(ServingTotal(phases[code], kind, told_by, counted(part), _ran(trace, part)))
    return found
