"""Puts the clocks of all hosts on one axis: offset and drift from matched collectives, else from clock
probes.

Ranks of one host share its clock. Ranks that take part in a collective leave it together, so the ends of
matched collectives on two hosts differ by their clocks; a median alone is wrong by the drift times the window
(52 µs in 10 s at 10 ppm), hence a robust line. The residual is what is left: nothing that is smaller than it
is said of two hosts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from rlprof_ops.analyze.columns import Ints
from rlprof_ops.analyze.metrics.collective_events import CollectiveEvents, one_communicator
from rlprof_ops.analyze.report_model import ClocksAnswer, HostClockRow
from rlprof_ops.analyze.run.hosts import HasHost
from rlprof_ops.analyze.run.identity import role_of
from rlprof_ops.host import foreign

MAX_PAIRS = 4  # pairs of ranks that two hosts are compared by
MAX_SHIFT = 3  # windows of two ranks may begin this many collectives apart
MIN_MATCHES = 3
DRIFT_AFTER_NS = 5_000_000_000
SIGMAS = 3  # of the fit, that the residual stands for: a bound and not the usual error
_MOST_APART_NS = 10 * 365 * 86_400 * 10**9  # that clocks of two hosts can be, and a probe can err by
_LATEST_NS = 1 << 62  # of Unix time: the year 2116
_MOST_DRIFT_PPM = 1e5  # crystals keep to 100
_MAD = 1.4826  # of a normal distribution, the standard deviation over the median absolute deviation


class HostClock(HostClockRow, frozen=True):
    """What to add to a host's times: the row's `offset_ns` at `at_ns`, growing by `drift_ppm`."""

    at_ns: int

    def aligned(self, time: int) -> int:
        return time + self.offset_ns + round((time - self.at_ns) * self.drift_ppm / 1e6)

    def all_aligned(self, times: Ints) -> Ints:
        if self.drift_ppm == 0:
            return times + self.offset_ns
        return times + self.offset_ns + np.round((times - self.at_ns) * self.drift_ppm / 1e6).astype(np.int64)

    def as_row(self, at_ns: int) -> HostClockRow:
        """As in the report, with the offset at a moment of the run."""
        row = {name: getattr(self, name) for name in HostClockRow.__struct_fields__}
        drift = round(self.drift_ppm, 4)
        return HostClockRow(**row | {"offset_ns": self.aligned(at_ns) - at_ns, "drift_ppm": drift})


@dataclass(frozen=True)
class _Probe:
    """What a node's record says of its clock at one moment; see `probes_of`."""

    at_ns: int
    offset_ns: int
    error_ns: int
    reference: str | None = None


@dataclass(frozen=True)
class Clocks:
    """The clocks of a run. `residual_ns` is the largest of all hosts, None when any is unknown."""

    hosts: tuple[HostClock, ...]

    @property
    def residual_ns(self) -> int | None:
        known = [clock.residual_ns for clock in self.hosts]
        return None if any(r is None for r in known) else max((r for r in known if r is not None), default=0)

    def of(self, host: str) -> HostClock:
        return self._of.get(host) or HostClock(host, 0, 0.0, None, 0, "unaligned", 0)

    @cached_property
    def _of(self) -> dict[str, HostClock]:
        return {clock.host: clock for clock in self.hosts}

    def shared_by(self, host: str) -> str:
        """A name for the clock that a host's times are on: "" where it is aligned to the others'."""
        return host if self.of(host).method == "unaligned" and len(self.hosts) > 1 else ""

    def as_rows(self, at_ns: int) -> ClocksAnswer:
        """As in the report; offsets are those at a moment of the run, for a drift moves them."""
        return ClocksAnswer(self.residual_ns, [clock.as_row(at_ns) for clock in self.hosts])


@dataclass(frozen=True)
class RankCollectives:
    """One rank's collective events, with what tells its communicators from another worker's."""

    host: str
    worker: str
    rank: int
    collective_events: tuple[CollectiveEvents, ...]
    world_rank: int = -1  # in the world that its communicators count in; -1: untold
    window: int | None = None  # the first step of the report: collectives of other windows are others


class HasCollectives(HasHost, Protocol):
    """What a process's report tells of the clock of its host."""

    @property
    def on_utc(self) -> bool: ...
    @property
    def collective_events(self) -> tuple[CollectiveEvents, ...]: ...
    @property
    def world_rank(self) -> int: ...


def clocks_of(parts: Sequence[HasCollectives], probes: dict[str, HostClock] | None = None) -> Clocks:
    """The clock of every host, by all that the reports of its processes tell."""
    members = (
        RankCollectives(
            p.host, role_of(p.report.worker), p.rank, p.collective_events, p.world_rank, p.report.start
        )
        for p in parts
        if p.on_utc
    )
    return align(members, (p.host for p in parts), probes)


def align(
    members: Iterable[RankCollectives], hosts: Iterable[str], probes: dict[str, HostClock] | None = None
) -> Clocks:
    """The clock of every host, relative to the one with the most ranks (the first by name among equals)."""
    members, names = list(members), sorted(set(hosts))
    if not names:
        return Clocks(())
    count = {name: sum(member.host == name for member in members) for name in names}
    reference = max(names, key=lambda name: count[name])
    clocks = {reference: HostClock(reference, 0, 0.0, 0, 0, "reference", 0)}
    edges = _edges(members)
    probes = probes or {}
    frontier = [reference]
    unseen = [name for name in names if name in probes and reference in probes]
    while frontier or unseen:  # breadth first: a host is aligned through the fewest others
        if not frontier:  # no collective leads further: go on from a host whose probes do
            host = unseen.pop(0)
            if host not in clocks:
                clocks[host] = _by_probes(host, probes[host], probes[reference])
                frontier.append(host)
            continue
        base = frontier.pop(0)
        for host in names:
            if host in clocks or (base, host) not in edges:
                continue
            clock = _fit(host, *edges[base, host])
            if clock is not None:
                clocks[host] = _chained(clocks[base], clock)
                if host in probes and reference in probes:
                    clocks[host] = _agreed(clocks[host], _by_probes(host, probes[host], probes[reference]))
                frontier.append(host)
    for host in names:
        clocks.setdefault(host, HostClock(host, 0, 0.0, None, 0, "unaligned", 0))
    return Clocks(tuple(clocks[name] for name in names))


def _agreed(fitted: HostClock, probed: HostClock) -> HostClock:
    """The clock by collectives, unless the probes prove it wrong: both are bounds, and they do not meet.

    Then what was taken for one collective were several, as of groups that nothing in the trace tells apart.
    """
    if fitted.residual_ns is None or probed.residual_ns is None:
        return fitted
    apart = abs(fitted.aligned(fitted.at_ns) - probed.aligned(fitted.at_ns))
    return fitted if apart <= fitted.residual_ns + probed.residual_ns else probed


def _by_probes(host: str, probe: HostClock, reference: HostClock) -> HostClock:
    """The clock of a host against the reference's, both probed against a third."""
    back = reference.aligned(probe.at_ns) - probe.at_ns
    residual = (
        None
        if probe.residual_ns is None or reference.residual_ns is None
        else probe.residual_ns + reference.residual_ns
    )
    drift = probe.drift_ppm - reference.drift_ppm
    return HostClock(host, probe.offset_ns - back, drift, residual, probe.matches, "probe", probe.at_ns)


def _chained(base: HostClock, clock: HostClock) -> HostClock:
    residual = (
        None
        if base.residual_ns is None or clock.residual_ns is None
        else base.residual_ns + clock.residual_ns
    )
    offset = clock.offset_ns + base.aligned(clock.at_ns) - clock.at_ns
    return HostClock(
        clock.host,
        offset,
        clock.drift_ppm + base.drift_ppm,
        residual,
        clock.matches,
        clock.method,
        clock.at_ns,
    )


Pair = tuple[Ints, Ints]  # ends on the base, ends on the other host


def _edges(members: list[RankCollectives]) -> dict[tuple[str, str], Pair]:
    """Ends of matched collective events for each ordered pair of hosts."""
    collected: dict[tuple[str, str], list[Pair]] = {}
    by_key: dict[tuple[str, str, str, int | None], list[tuple[RankCollectives, CollectiveEvents]]] = {}
    for member in members:
        for meeting in member.collective_events:
            key = (member.worker, meeting.key, meeting.communicator, member.window)
            by_key.setdefault(key, []).append((member, meeting))
    for group in by_key.values():
        size = max(meeting.size for _, meeting in group)
        if not one_communicator([member.world_rank for member, _ in group], size):
            continue
        hosts: dict[str, list[CollectiveEvents]] = {}
        for member, meeting in group:
            hosts.setdefault(member.host, []).append(meeting)
        for base, ours in hosts.items():
            for other, theirs in hosts.items():
                pairs = collected.setdefault((base, other), [])
                if base == other or len(pairs) >= MAX_PAIRS:
                    continue
                matched = match(ours[0], theirs[0])
                if matched is not None:
                    pairs.append(matched)
    return {
        hosts: (np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs]))
        for hosts, pairs in collected.items()
        if pairs
    }


def match_rows(a: CollectiveEvents, b: CollectiveEvents) -> tuple[Ints, Ints] | None:
    """Rows of the same collective events on two ranks: by their sequence numbers, else in order.

    In order means with the shift (at most `MAX_SHIFT` either way) at which the ends differ most evenly, for
    the windows of two ranks may begin a collective apart. Where collectives come at a steady pace several
    shifts do equally well, and the one with the smallest difference is taken: clocks of a cluster are kept
    together by NTP. None when fewer than `MIN_MATCHES` match.
    """
    if len(a.sequence) and bool((a.sequence >= 0).all() and (b.sequence >= 0).all()):
        _, rows_a, rows_b = np.intersect1d(a.sequence, b.sequence, return_indices=True)
        return (rows_a, rows_b) if len(rows_a) >= MIN_MATCHES else None
    found: list[tuple[float, float, Ints, Ints]] = []
    for shift in range(-MAX_SHIFT, MAX_SHIFT + 1):
        first_a, first_b = max(shift, 0), max(-shift, 0)
        count = min(len(a.end) - first_a, len(b.end) - first_b)
        if count < MIN_MATCHES or (shift and count < min(len(a.end), len(b.end)) - MAX_SHIFT):
            continue
        rows_a, rows_b = first_a + np.arange(count), first_b + np.arange(count)
        apart = a.end[rows_a] - b.end[rows_b]
        middle = float(np.median(apart))
        found.append((float(np.median(np.abs(apart - middle))), abs(middle), rows_a, rows_b))
    if not found:
        return None
    evenly = 2 * min(spread for spread, *_ in found) + 1
    _, _, rows_a, rows_b = min((f for f in found if f[0] <= evenly), key=lambda f: f[1])
    return rows_a, rows_b


def match(a: CollectiveEvents, b: CollectiveEvents) -> Pair | None:
    rows = match_rows(a, b)
    return None if rows is None else (a.end[rows[0]], b.end[rows[1]])


def _fit(host: str, ours: Ints, theirs: Ints) -> HostClock | None:
    """Robust line through (their time, our time - their time): medians of slopes between the halves, then
    of offsets.
    """
    if len(ours) < MIN_MATCHES:
        return None
    order = np.argsort(theirs, kind="stable")
    at = theirs[order]
    apart = (ours - theirs)[order]
    middle = int(at[len(at) // 2])
    x = (at - middle).astype(np.float64)
    base = int(np.median(apart))
    y = (apart - base).astype(np.float64)
    slope = 0.0
    if at[-1] - at[0] >= DRIFT_AFTER_NS and len(at) >= 8:
        half = len(at) // 2
        run = x[half : 2 * half] - x[:half]
        slopes = (y[half : 2 * half] - y[:half])[run > 0] / run[run > 0]
        slope = float(np.median(slopes)) if len(slopes) else 0.0
    left = y - slope * x
    shift = float(np.median(left))
    residual = SIGMAS * _MAD * float(np.median(np.abs(left - shift)))
    return HostClock(host, base + round(shift), slope * 1e6, round(residual), len(at), "collectives", middle)


def probes_of(nodes: Mapping[str, Mapping[str, object]]) -> dict[str, HostClock]:
    """Clocks against the head from `nodes/<node>.json`, key `clock` (written by
    `rlprof_ops.host.clock_probe`).

    An entry is {at_ns, offset_ns, error_ns, reference}: what to add to the node's clock, within half a round
    trip. With probes at the job's start and end the drift between them is taken. A clock that was set between
    them, by a tenth of the time or more, is not known, nor is one that a record tells out of all bounds.
    """
    clocks: dict[str, HostClock] = {}
    for host, node in nodes.items():
        probes = [probe for told in foreign.a_list(node.get("clock")) if (probe := _probe(told))]
        if not probes:
            continue
        probes.sort(key=lambda probe: probe.at_ns)
        first, last = probes[0], probes[-1]
        span = last.at_ns - first.at_ns
        drift = (last.offset_ns - first.offset_ns) / span * 1e6 if span > DRIFT_AFTER_NS else 0.0
        if abs(drift) > _MOST_DRIFT_PPM:
            continue
        error = max(probe.error_ns for probe in probes)
        clocks[host] = HostClock(host, first.offset_ns, drift, error, len(probes), "probe", first.at_ns)
        if first.reference and first.reference != host:
            clocks.setdefault(first.reference, HostClock(first.reference, 0, 0.0, 0, 0, "reference", 0))
    return clocks


def _probe(told: object) -> _Probe | None:
    """One of a node's probes; None for what no clock can say."""
    with contextlib.suppress(ValueError):
        probe = foreign.typed(told, _Probe)
        apart = max(abs(probe.offset_ns), probe.error_ns)
        if 0 <= probe.at_ns < _LATEST_NS and probe.error_ns >= 0 and apart <= _MOST_APART_NS:
            return probe
    return None
