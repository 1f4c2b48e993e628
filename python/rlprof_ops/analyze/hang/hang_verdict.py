"""Which collective of which group waits for whom, from the dumps of one world's ranks.

A rank is missing where its group's other ranks are in a collective that it has not begun. Of several
groups that wait, the one counts whose missing rank waits nowhere itself; where all of them do, ranks use
their groups in different orders. Dumps of ranks that go on are of different moments: who has ended a
collective with a rank shows that this rank has come further than its own dump says.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from rlprof_ops.analyze.hang.flight_dumps import FlightDump
from rlprof_ops.host import foreign
from rlprof_ops.runtime.on_demand.group_state import is_open
from rlprof_ops.words import ranks_text

MISSING, MISMATCH, ORDER, NETWORK, BEHIND, MOMENTS, NOTHING = (
    "missing",
    "mismatch",
    "order",
    "network",
    "behind",
    "moments",
    "nothing",
)
NO_HANG = (MOMENTS, NOTHING)
# Collectives that no rank can end before all have come. A broadcast's source, say, may be long gone.
_FOR_ALL = ("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "all_to_all", "barrier")
_EVERYONE = "default_pg"
_MOST_FRAMES = 40
# Collectives whose ranks may bring tensors of different sizes.
_UNEVEN = ("all_to_all", "alltoall", "_v", "coalesced", "scatter", "gather")
_Key = tuple[str, str]


@dataclass(frozen=True)
class Enqueued:
    """One collective, or one send or receive, as a rank enqueued it."""

    group: _Key
    sequence: int
    operation: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    is_open: bool
    created_ns: int
    frames: tuple[str, ...]

    def __str__(self) -> str:
        what = ", ".join(
            f"{dtype} {list(size)}" for dtype, size in zip(self.dtypes, self.sizes, strict=False)
        )
        return f"{self.operation} #{self.sequence} of {name_of(self.group)}" + (f" ({what})" if what else "")

    @property
    def call_site(self) -> str:
        """The innermost frame that is not of torch itself; empty where the dump holds no stacks."""
        own = [frame for frame in self.frames if "/torch/" not in frame]
        return (own or list(self.frames) or [""])[0]

    def differs(self, other: Enqueued) -> str:
        """In what this cannot be the same collective as `other`: operation, dtype or shape; else empty."""
        if self.operation != other.operation:
            return "operation"
        if self.dtypes != other.dtypes:
            return "dtype"
        if any(part in self.operation for part in _UNEVEN):
            return ""
        return "shape" if [*map(math.prod, self.sizes)] != [*map(math.prod, other.sizes)] else ""


@dataclass(frozen=True)
class _Later:
    """`rank` has come further than its dump says: `by` have ended `what` of a group of both."""

    rank: int
    by: tuple[int, ...]
    what: Enqueued

    is_certain: bool

    def __str__(self) -> str:
        moments = f"the dumps {'are' if self.is_certain else 'may be'} of different moments"
        has = f"{ranks_text(self.by)} {_has(self.by)} ended {self.what}"
        return f"{moments}: {has}, which {ranks_text([self.rank])} had not begun when its dump was written"


@dataclass(frozen=True)
class ProcessGroup:
    """A process group: who belongs to it, and what each rank enqueued in it, by sequence number."""

    key: _Key
    members: tuple[int, ...]
    is_complete: bool  # the dumps name its members; else those who were seen in it
    entries: Mapping[int, Mapping[int, dict[str, object]]]
    unknown: tuple[int, ...]  # ranks whose dump no longer holds what they did in it

    @cached_property
    def last(self) -> dict[int, int]:
        """The sequence number of each rank's last collective here; 0 for one that has begun none."""
        return {rank: max(self.entries[rank], default=0) for rank in self.entries if rank not in self.unknown}

    def at(self, rank: int, sequence: int) -> Enqueued | None:
        raw = self.entries.get(rank, {}).get(sequence)
        return None if raw is None else enqueued(raw)

    @cached_property
    def later(self) -> dict[int, _Later]:
        """The ranks that have come further here than their dumps say."""
        last = self.last
        low = min(last.values(), default=0)
        ended = [
            (sequence, by)
            for sequence in sorted({at for rank in last for at in self.entries[rank] if at > low})
            if (by := [rank for rank in last if self._ended_with_all(rank, sequence)])
        ]
        found = {}
        for rank, own in last.items():
            sequence, by = next((each for each in ended if each[0] > own), (0, []))
            if by and (what := self.at(by[0], sequence)):
                certain = any(self.entries[each][sequence].get("state") == "completed" for each in by)
                found[rank] = _Later(rank, tuple(sorted(by)), what, certain)
        return found

    def _ended_with_all(self, rank: int, sequence: int) -> bool:
        """Whether a rank has ended this collective together with all ranks of the group. gloo does not tell
        whether one ended well; a rank that goes on has probably ended it well.
        """
        raw = self.entries[rank].get(sequence)
        if raw is None or is_open(raw) or not enqueued(raw).operation.lstrip("_").startswith(_FOR_ALL):
            return False
        return raw.get("state") == "completed" or self.last[rank] > sequence

    @property
    def is_of_one_moment(self) -> bool:
        return not any(each.is_certain for each in self.later.values())


@dataclass(frozen=True)
class _Wait:
    """Ranks in an open collective that others of the group have not begun."""

    what: Enqueued
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    without_dump: tuple[int, ...] = ()


@dataclass
class HangVerdict:
    """`text` is the first sentence; the other fields say the same for programs. `hung`: it is of a job that
    hung, and not only of one whose dumps were asked for.
    """

    kind: str = NOTHING
    text: str = "no collective is open in these dumps, and no rank is behind"
    sure: bool = True
    collective: Enqueued | None = None
    waiting: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    without_dump: tuple[int, ...] = ()
    sides: list[tuple[tuple[int, ...], Enqueued]] = field(default_factory=list)  # what does not match
    last: dict[int, Enqueued | None] = field(default_factory=dict)  # of the missing ranks
    notes: list[str] = field(default_factory=list)
    seen: dict[int, dict[str, object]] = field(default_factory=dict)  # by the job's recorder, of the missing
    hung: bool = True


def name_of(key: _Key) -> str:
    """A group as its trainer calls it: the description, and torch's own name where there is no other."""
    name, description = key
    named = description if description and description != "undefined" else f"group {name}"
    return named if named == _EVERYONE or not name or named.startswith("group ") else f"{named} ({name})"


def enqueued(raw: Mapping[str, object]) -> Enqueued:
    """An entry of a dump, whatever stands in it."""
    backend, _, operation = foreign.text(raw.get("profiling_name"))[:200].partition(":")
    is_p2p = bool(raw.get("is_p2p"))
    frames = foreign.a_list(raw.get("frames"))[:_MOST_FRAMES]
    return Enqueued(
        _key(raw.get("process_group")),
        foreign.whole(raw.get("p2p_seq_id" if is_p2p else "collective_seq_id")) or 0,
        operation or backend,
        tuple(
            tuple(foreign.whole(extent) or 0 for extent in foreign.a_list(size)[:16])
            for size in foreign.a_list(raw.get("input_sizes"))[:16]
        ),
        tuple(map(str, foreign.a_list(raw.get("input_dtypes"))[:16])),
        is_open(raw),
        foreign.whole(raw.get("time_created_ns")) or 0,
        tuple(map(_frame, map(foreign.an_object, frames))),
    )


def _key(named: object) -> _Key:
    parts = [foreign.text(part) for part in named[:2]] if isinstance(named, tuple | list) else []
    return (*parts, "", "")[0], (*parts, "", "")[1]


def _frame(raw: Mapping[str, object]) -> str:
    file, line = foreign.text(raw.get("filename")), foreign.whole(raw.get("line")) or 0
    return f"{foreign.text(raw.get('name'))} {file}:{line}"


def judge(world: Mapping[int, FlightDump]) -> HangVerdict:
    """The verdict over the dumps of one world."""
    groups = _groups(world)
    open_now = {rank: [enqueued(raw) for raw in dump.entries if is_open(raw)] for rank, dump in world.items()}
    verdict = _judged(world, groups, open_now)
    if later := [each for group in groups for each in group.later.values()]:
        surest = max(later, key=lambda each: each.is_certain)
        if verdict.kind == NOTHING and surest.is_certain:
            verdict = HangVerdict(MOMENTS, f"no hang is seen, for {surest}")
        elif verdict.kind != NOTHING:
            verdict.sure = False
            verdict.notes.append(str(surest))
    verdict.last = {
        rank: enqueued(world[rank].entries[-1]) if world[rank].entries else None
        for rank in verdict.missing
        if rank in world
    }
    lost = sorted({rank for group in groups for rank in group.unknown})
    if lost:
        verdict.notes.append(
            f"{ranks_text(lost)}: older entries have made room for newer ones, and a group is not seen any"
            " more (TORCH_FR_BUFFER_SIZE holds more)"
        )
    if not any(raw.get("frames") for dump in world.values() for raw in dump.entries[-1:]):
        verdict.notes.append("the dumps hold no stacks, so no line of code can be named")
    return verdict


def _judged(
    world: Mapping[int, FlightDump], groups: list[ProcessGroup], open_now: Mapping[int, list[Enqueued]]
) -> HangVerdict:
    something_open = any(open_now.values())
    for group in groups:
        if found := _mismatch(group, only_open=something_open):
            return found
    waits = [*_waits(groups, world)]
    if all(group.is_of_one_moment for group in groups):  # a send's other side may be of another moment
        waits += _pairs(groups, world, open_now)
    stuck = {rank for wait in waits for rank in wait.waiting}
    for wait in sorted(waits, key=lambda each: (not stuck.isdisjoint(each.missing), -len(each.waiting))):
        free = tuple(rank for rank in wait.missing if rank not in stuck)
        if free:
            return _missing(wait, free)
    if circle := [wait for wait in waits if wait.missing]:
        return _order(circle)
    if waits:
        return _missing(max(waits, key=lambda each: len(each.waiting)), ())
    alone = [group for group in groups if _members_are_a_guess(group)]
    if alone:
        return _told_apart(alone, world)
    of_one_moment = [group for group in groups if group.is_of_one_moment]
    for group in of_one_moment:
        opened = _opened(group)
        if opened:
            rank, sequence = min(opened.items(), key=lambda item: item[1])
            return _all_there(group, group.at(rank, sequence), tuple(sorted(opened)))
    return next((verdict for group in of_one_moment if (verdict := _behind(group))), HangVerdict())


def _groups(world: Mapping[int, FlightDump]) -> list[ProcessGroup]:
    """Every group that a collective of the dumps belongs to. Groups of one name with other members are other
    groups.
    """
    everyone = {*world, *(r for dump in world.values() for _, ranks in dump.groups.values() for r in ranks)}
    found: dict[tuple[_Key, tuple[int, ...]], dict[int, dict[int, dict[str, object]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for rank, dump in world.items():
        by_name: dict[object, dict[int, dict[str, object]]] = {}
        for raw in dump.entries:
            sequence, named = raw.get("collective_seq_id"), raw.get("process_group")
            if raw.get("is_p2p") or not isinstance(sequence, int):
                continue
            name = tuple(named) if isinstance(named, list) else named
            try:
                there = by_name.get(name)
            except TypeError:
                continue
            if there is None:
                key = _key(named)
                ranks = (
                    tuple(sorted(everyone)) if key[1] == _EVERYONE else dump.groups.get(key[0], ("", ()))[1]
                )
                there = by_name[name] = found[key, ranks][rank]
            there.setdefault(sequence, raw)
    groups = []
    for (key, ranks), entries in found.items():
        members = ranks or tuple(sorted(entries))
        silent = [rank for rank in members if rank in world and rank not in entries]
        unknown = tuple(rank for rank in silent if world[rank].has_lost)
        entries.update({rank: {} for rank in silent if rank not in unknown})
        groups.append(ProcessGroup(key, members, bool(ranks), dict(entries), unknown))
    return groups


def _opened(group: ProcessGroup) -> dict[int, int]:
    """The first open collective of each rank that has one."""
    return {
        rank: min(opened)
        for rank, there in group.entries.items()
        if (opened := [sequence for sequence, raw in there.items() if is_open(raw)])
    }


def _mismatch(group: ProcessGroup, only_open: bool) -> HangVerdict | None:
    opened = _opened(group)
    if only_open and not opened:
        return None
    for sequence in sorted({*opened.values()} if opened else {*group.last.values()}):
        there = {rank: e for rank in group.entries if (e := group.at(rank, sequence))}
        sides: list[tuple[list[int], Enqueued]] = []
        for rank, e in sorted(there.items()):
            same = next((ranks for ranks, other in sides if not e.differs(other)), None)
            if same is None:
                sides.append(([rank], e))
            else:
                same.append(rank)
        if len(sides) > 1:
            return _named_mismatch(group, sequence, sorted(sides, key=lambda side: len(side[0])))
    return None


def _named_mismatch(
    group: ProcessGroup, sequence: int, sides: list[tuple[list[int], Enqueued]]
) -> HangVerdict:
    (few, odd), (many, usual) = sides[0], sides[-1]
    what = odd.differs(usual)
    after_odd, after_usual = group.at(few[0], sequence + 1), group.at(many[0], sequence + 1)
    if after_odd and after_usual and not after_odd.differs(usual) and not after_usual.differs(odd):
        what = "order"
    behind = [rank for rank, last in sorted(group.last.items()) if last < sequence]
    verdict = HangVerdict(
        MISMATCH,
        f"collectives do not match in their {what}: {ranks_text(few)} {_calls(few)} {odd} where"
        f" {ranks_text(many)} {_calls(many)} {usual}",
        collective=usual,
        waiting=tuple(many),
        sides=[(tuple(ranks), e) for ranks, e in sides],
    )
    if behind:
        verdict.notes.append(f"{ranks_text(behind)} {_has(behind)} not begun it")
    return verdict


def _calls(ranks: list[int]) -> str:
    return "calls" if len(ranks) == 1 else "call"


def _has(ranks: Iterable[int]) -> str:
    return "has" if len([*ranks]) == 1 else "have"


def _waits(groups: list[ProcessGroup], world: Mapping[int, FlightDump]) -> Iterator[_Wait]:
    for group in groups:
        opened = _opened(group)
        if not opened:
            continue
        first = min(opened.values())
        behind = (rank for rank, last in group.last.items() if last < first)
        came = {rank for rank, later in group.later.items() if later.is_certain}
        missing = tuple(sorted(rank for rank in behind if rank not in came))
        without = tuple(rank for rank in group.members if rank not in world)
        waiting = tuple(sorted(opened))
        what = group.at(min(opened, key=lambda rank: opened[rank]), first)
        if what and (missing or without):
            yield _Wait(what, waiting, missing, without)


def _pairs(
    groups: list[ProcessGroup], world: Mapping[int, FlightDump], open_now: Mapping[int, list[Enqueued]]
) -> Iterator[_Wait]:
    """Sends and receives whose other side has not come."""
    members = {group.key: group.members for group in groups}
    for rank, found in open_now.items():
        for e in found:
            kind, _, pair = e.operation.partition(" ")
            ends = pair.replace("<-", "->").split("->")
            if kind not in ("send", "recv") or len(ends) != 2 or not ends[1].isdigit():
                continue
            other = int(ends[1])  # both write their own rank of the group first
            ranks = members.get(e.group, ())
            peer = ranks[other] if other < len(ranks) else other
            back = f"{'recv' if kind == 'send' else 'send'} "
            if peer not in world:
                yield _Wait(e, (rank,), (), (peer,))
            elif not any(o.group == e.group and o.operation.startswith(back) for o in open_now[peer]):
                yield _Wait(e, (rank,), (peer,))


def _missing(wait: _Wait, free: tuple[int, ...]) -> HangVerdict:
    missing = free or wait.without_dump
    text = f"{ranks_text(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    if not free:
        text = f"{ranks_text(missing)} left no dump and may be missing"
    waiting = ranks_text(wait.waiting)
    verdict = HangVerdict(
        MISSING,
        f"{text}: {waiting} {'waits' if len(wait.waiting) == 1 else 'wait'} in {wait.what}",
        bool(free) and not wait.without_dump,
        wait.what,
        wait.waiting,
        missing,
        wait.without_dump,
    )
    if free and wait.without_dump:
        verdict.notes.append(f"{ranks_text(wait.without_dump)} left no dump, so more may be missing")
    also = [rank for rank in wait.missing if rank not in free]
    if also:
        verdict.notes.append(f"{ranks_text(also)} {_has(also)} not come either, waiting elsewhere")
    return verdict


def _order(waits: list[_Wait]) -> HangVerdict:
    said = "; ".join(
        f"{ranks_text(wait.waiting)} {'waits' if len(wait.waiting) == 1 else 'wait'} in {wait.what} for"
        f" {ranks_text(wait.missing)}"
        for wait in waits[:4]
    )
    sides = [(wait.waiting, wait.what) for wait in waits]
    return HangVerdict(ORDER, f"ranks use their groups in different orders: {said}", sides=sides)


def _members_are_a_guess(group: ProcessGroup) -> bool:
    """Whether the first collective of a group is open, in dumps that do not say who belongs to it."""
    opened = _opened(group)
    return not group.is_complete and bool(opened) and {*opened.values()} == {1} and {*group.last} == {*opened}


def _told_apart(groups: list[ProcessGroup], world: Mapping[int, FlightDump]) -> HangVerdict:
    """Groups that have just been used for the first time, whose members the dumps do not name."""
    sides = [(tuple(sorted(_opened(group))), group.at(min(group.last), 1)) for group in groups]
    known = [(ranks, e) for ranks, e in sides if e]
    said = "; ".join(
        f"{ranks_text(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {e}" for ranks, e in known[:4]
    )
    seen = [rank for ranks, _ in known for rank in ranks]
    note = "the dumps do not say which ranks belong to these groups, as gloo's never do"
    if len(known) > 1 and len({*seen}) == len(seen):
        text = f"ranks seem to use their groups in different orders: {said}"
        return HangVerdict(ORDER, text, False, sides=known, notes=[note])
    ranks, e = known[0]
    others = tuple(rank for rank in world if rank not in ranks)
    if not others:
        return _all_there(groups[0], e, ranks)
    text = f"{said}, and no other rank has been seen there"
    return HangVerdict(MISSING, text, False, e, ranks, others, notes=[note])


def _all_there(group: ProcessGroup, what: Enqueued | None, waiting: tuple[int, ...]) -> HangVerdict:
    verdict = HangVerdict(
        NETWORK,
        f"nobody is missing: all ranks of {name_of(group.key)} are in {what}, so the network or a GPU is to"
        f" blame{_not_started(group)}",
        collective=what,
        waiting=waiting,
    )
    if not group.is_complete:
        verdict.sure = False
        verdict.notes.append("who belongs to the group was taken from who has used it")
    return verdict


def _not_started(group: ProcessGroup) -> str:
    """Whose GPUs have not begun what others' have; torch tells it with TORCH_NCCL_ENABLE_TIMING."""
    states = {rank: group.entries[rank][at].get("state") for rank, at in _opened(group).items()}
    late = [rank for rank, state in states.items() if state == "scheduled"]
    if not late or "started" not in states.values():
        return ""
    return f"; the {'GPU' if len(late) == 1 else 'GPUs'} of {ranks_text(late)} {_has(late)} not started it"


def _behind(group: ProcessGroup) -> HangVerdict | None:
    """A rank that had not begun what the others have ended or given up, as after a timeout."""
    last = group.last
    low, high = min(last.values(), default=0), max(last.values(), default=0)
    if low == high:
        return None
    missing = tuple(sorted(rank for rank in last if last[rank] == low))
    there = tuple(sorted(rank for rank in last if last[rank] > low))
    what = next((e for rank in there if (e := group.at(rank, low + 1))), None)
    named = what or f"what came after #{low} of {name_of(group.key)}"
    text = (
        f"{ranks_text(missing)} {_has(missing)} not begun {named}, which {ranks_text(there)} {_has(there)}"
        " ended or given up"
    )
    return HangVerdict(BEHIND, text, False, what, there, missing)
