"""A verdict for people and for programs: one sentence, what the missing ranks did last, ranks by sequence."""

from __future__ import annotations

import glob
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rlprof_ops.analyze.hang.flight_dumps import FlightDump, FoundDumps, read_folder
from rlprof_ops.analyze.hang.hang_verdict import (
    NETWORK,
    NO_HANG,
    Enqueued,
    HangVerdict,
    enqueued,
    judge,
    name_of,
)
from rlprof_ops.collect.harvest.manifest_table import grid, printable
from rlprof_ops.host import foreign
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.recorder.detect.anomaly import HANG
from rlprof_ops.recorder.head_recorder import FINDINGS, read_rows
from rlprof_ops.recorder.head_recorder import FOLDER as RECORDER
from rlprof_ops.runtime.on_demand.group_state import is_open
from rlprof_ops.words import ranks_text

_MOST_GROUPS, _MOST_ROWS, _MOST_NAMED, _MOST_LAST_LINES = 4, 24, 8, 4
_MOST_CHARACTERS, _MOST_SUSPECTS = 300, 4
_MARK = ":"  # Ray's own lines in a worker's log, such as `:actor_name:policy`


def explain(folder: Path) -> tuple[list[str], dict[str, object]]:
    """The lines for people and the JSON of every dump below `folder`; neither holds a verdict where none was
    read.
    """
    found = read_folder(folder)
    judged = judged_worlds(folder, found)
    lines = [line for world, verdict in judged for line in _lines(folder, world, verdict)]
    lines += [f"not read: {path}: {reason}" for path, reason in found.unread[:_MOST_NAMED]]
    return [printable(line) for line in lines], _for_programs(found, judged)


def judged_worlds(folder: Path, found: FoundDumps) -> list[tuple[dict[int, FlightDump], HangVerdict]]:
    """Each world of these dumps with its verdict, the surest first."""
    seen = _seen(folder)
    end = foreign.an_object(foreign.read_object(folder / "run.json").get("end"))
    is_known = bool(seen) or end.get("cause") == EndCause.HANG
    judged = [(world, judge(world)) for world in found.worlds]
    for world, verdict in judged:
        verdict.hung = is_known or not all(dump.was_asked_for for dump in world.values())
        _add_seen(world, verdict, seen)
    return sorted(judged, key=lambda each: (each[1].kind in NO_HANG, not each[1].sure, -len(each[0])))


def _seen(folder: Path) -> list[dict[str, object]]:
    """What the job's recorder saw of the ranks that were missing, the latest last."""
    rows = read_rows(folder / RECORDER / FINDINGS, ("kind", "evidence"))
    return [foreign.an_object(row["evidence"]) for row in rows if row["kind"] == HANG]


def _add_seen(
    world: Mapping[int, FlightDump], verdict: HangVerdict, seen: Iterable[Mapping[str, object]]
) -> None:
    """Say what the missing ranks did, or what may be to blame, where that was seen in this collective of this
    world.
    """
    for evidence in seen:
        mark = f"fr_{foreign.text(evidence.get('world'))}_rank_"
        same = verdict.collective and evidence.get("sequence") == verdict.collective.sequence
        if not same or not all(mark in dump.path.name for dump in world.values()):
            continue
        told = map(foreign.an_object, foreign.a_list(evidence.get("missing")))
        verdict.seen = {rank: row for row in told if (rank := foreign.whole(row.get("rank"))) is not None}
        suspects = list(map(foreign.text, foreign.a_list(evidence.get("suspects"))))[:_MOST_SUSPECTS]
        if verdict.kind == NETWORK and suspects:
            verdict.text = "; ".join([verdict.text, *suspects])
    if verdict.missing and verdict.seen.keys() >= {*verdict.missing}:
        who = "; ".join(foreign.text(verdict.seen[rank].get("said")) for rank in verdict.missing[:4])
        verdict.text, verdict.sure = f"{who}: {verdict.text.partition(': ')[2]}", True


def _last_lines(folder: Path, world: Mapping[int, FlightDump], verdict: HangVerdict) -> Iterator[str]:
    """The end of the logs of the ranks that are missing, or whose collectives do not match the others'."""
    odd = [rank for ranks, _ in verdict.sides[:1] for rank in ranks]
    for rank in [*dict.fromkeys([*verdict.missing, *odd])][:_MOST_NAMED]:
        row = verdict.seen.get(rank, {})
        node, pid = foreign.text(row.get("node")), foreign.whole(row.get("pid"))
        if pid is None and rank in world:
            node, pid = world[rank].process
        logs = f"ray/{glob.escape(node) or '*'}/*/logs/worker-*-{pid}"
        for path in sorted([*folder.glob(f"{logs}.err"), *folder.glob(f"{logs}.out")]):
            lines = [line for line in foreign.tail(path).splitlines() if line.strip()]
            if lines := [line for line in lines if not line.startswith(_MARK)]:
                yield f"  rank {rank}, the last lines of {path}:"
                yield from (f"    {line[:_MOST_CHARACTERS]}" for line in lines[-_MOST_LAST_LINES:])


def _lines(folder: Path, world: Mapping[int, FlightDump], verdict: HangVerdict) -> Iterator[str]:
    text = verdict.text if verdict.sure else f"{verdict.text} (not sure)"
    yield text[0].upper() + text[1:] + "."
    if verdict.collective and verdict.collective.call_site and not verdict.sides:
        yield f"  {ranks_text(verdict.waiting)}: at {verdict.collective.call_site}"
    for ranks, side in verdict.sides[:_MOST_NAMED]:
        yield f"  {ranks_text(ranks)}: {side}{_at(side)}"
    for last, missing in _by_last(verdict)[:_MOST_NAMED]:
        if last is None:
            yield f"  {ranks_text(missing)}: no collective in the dump"
        else:
            yield f"  {ranks_text(missing)}: last {'in' if last.is_open else 'ended'} {last}{_at(last)}"
    yield from _last_lines(folder, world, verdict)
    for note in verdict.notes:
        yield f"  {note}"
    yield ""
    names, rows = _table(world)
    yield from grid(("ranks", *names, "now"), rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        yield f"… and {len(rows) - _MOST_ROWS} more rows; --json has all"
    yield ""


def _at(what: Enqueued) -> str:
    return f" at {what.call_site}" if what.call_site else ""


def _by_last(verdict: HangVerdict) -> list[tuple[Enqueued | None, list[int]]]:
    """The missing ranks, by what they did last and where."""
    found: dict[tuple[str, str], tuple[Enqueued | None, list[int]]] = {}
    for rank, last in sorted(verdict.last.items()):
        key = (str(last), last.call_site) if last else ("", "")
        found.setdefault(key, (last, []))[1].append(rank)
    return list(found.values())


def stands_of(world: Mapping[int, FlightDump]) -> dict[int, tuple[dict[str, int], Enqueued | None]]:
    """Of each rank: its last sequence number in every group, and its first open collective, else its last."""
    stands = {}
    for rank, dump in sorted(world.items()):
        last: dict[str, int] = defaultdict(int)
        for each in map(enqueued, dump.entries):
            last[name_of(each.group)] = max(last[name_of(each.group)], each.sequence)
        first = next(filter(is_open, dump.entries), dump.entries[-1] if dump.entries else None)
        stands[rank] = (dict(last), None if first is None else enqueued(first))
    return stands


def _table(world: Mapping[int, FlightDump]) -> tuple[list[str], list[list[str]]]:
    """Ranks that stand alike share a row: their last sequence number in each group, and what they are in."""
    stands = stands_of(world)
    names = sorted({name for last, _ in stands.values() for name in last})[:_MOST_GROUPS]
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, (last, now) in stands.items():
        done = "" if now is None else f"{'in' if now.is_open else 'ended'} {now.operation}{_at(now)}"
        row = (*(f"#{last[name]}" if name in last else "-" for name in names), done)
        alike[row].append(rank)
    rows = [[ranks_text(ranks).partition(" ")[2], *row] for row, ranks in alike.items()]
    return names, rows


def _for_programs(
    found: FoundDumps, judged: list[tuple[dict[int, FlightDump], HangVerdict]]
) -> dict[str, object]:
    return {
        "verdicts": [_verdict(world, verdict) for world, verdict in judged],
        "unread": [{"file": str(path), "reason": reason} for path, reason in found.unread],
    }


def _verdict(world: Mapping[int, FlightDump], verdict: HangVerdict) -> dict[str, object]:
    stands = stands_of(world)
    stacks: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, (_, now) in stands.items():
        if now is not None and now.frames:
            stacks[now.frames].append(rank)
    return {
        "kind": verdict.kind,
        "text": verdict.text,
        "sure": verdict.sure,
        "hung": verdict.hung,
        "collective": _collective(verdict.collective),
        "waiting": list(verdict.waiting),
        "missing": [
            {
                "rank": rank,
                "dump": rank in world,
                "last": _collective(verdict.last.get(rank)),
                "seen": verdict.seen.get(rank),
            }
            for rank in verdict.missing
        ],
        "without_dump": list(verdict.without_dump),
        "sides": [{"ranks": list(ranks), "collective": _collective(side)} for ranks, side in verdict.sides],
        "notes": verdict.notes,
        "ranks": [
            {"rank": rank, "file": str(world[rank].path), "last": last, "now": _collective(now)}
            for rank, (last, now) in stands.items()
        ],
        "stacks": [{"ranks": ranks, "frames": list(frames)} for frames, ranks in stacks.items()],
    }


def _collective(what: Enqueued | None) -> dict[str, object] | None:
    return (
        None
        if what is None
        else {
            "group": name_of(what.group),
            "sequence": what.sequence,
            "operation": what.operation,
            "sizes": [list(size) for size in what.sizes],
            "dtypes": list(what.dtypes),
            "open": what.is_open,
            "created_ns": what.created_ns,
            "at": what.call_site,
        }
    )
