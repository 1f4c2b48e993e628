"""The hangs of a run as rows of `report.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs

from rlprof_ops.analyze.hang.flight_dumps import FlightDump, read_folder
from rlprof_ops.analyze.hang.hang_text import judged_worlds, stands_of
from rlprof_ops.analyze.hang.hang_verdict import NO_HANG, Enqueued, HangVerdict, name_of
from rlprof_ops.analyze.report_model import Finding, HangRow, HungRanks
from rlprof_ops.host import foreign
from rlprof_ops.recorder.detect.anomaly import HANG
from rlprof_ops.recorder.head_recorder import FINDINGS, FOLDER, read_rows

MOST_HANGS, MOST_GROUPS, MOST_ROWS, MOST_FRAMES = 4, 4, 64, 24
_MOST_SENTENCES = 2


def hang_rows(run: Path) -> list[HangRow]:
    """What the dumps of a run folder say, then what its recorder found where no collective tells of it."""
    if not (run / "run.json").exists():
        return []
    told = [row for row in read_rows(run / FOLDER / FINDINGS, ("kind", "text")) if row["kind"] == HANG]
    steps = {_collective(row): foreign.whole(row.get("step")) for row in told}
    worlds = judged_worlds(run, read_folder(run))
    found = [_of_world(world, verdict, steps) for world, verdict in worlds if verdict.kind not in NO_HANG]
    alone = [row for row in told if not found or not _collective(row)[0]]
    found += [HangRow(HANG, foreign.text(row["text"]), True, foreign.whole(row.get("step"))) for row in alone]
    return found[:MOST_HANGS]


def hang_findings(hangs: Sequence[HangRow]) -> list[Finding]:
    """A sentence for each of the first hangs."""
    return [Finding("hang", _sentence(hang), 0) for hang in hangs[:_MOST_SENTENCES]]


def _sentence(hang: HangRow) -> str:
    where = f" in step {hang.step}" if hang.step else ""
    said = f"{hang.text}{'' if hang.sure else ' (not sure)'}."
    return f"The job hung{where}: {said}" if hang.hung else f"When dumps were asked for: {said}"


def _collective(row: Mapping[str, object]) -> tuple[str, int | None]:
    """World and number of the collective of a finding; "" for one of no collective."""
    evidence = foreign.an_object(row.get("evidence"))
    return foreign.text(evidence.get("world")), foreign.whole(evidence.get("sequence"))


def _of_world(
    world: dict[int, FlightDump], verdict: HangVerdict, steps: Mapping[tuple[str, int | None], int | None]
) -> HangRow:
    number = verdict.collective.sequence if verdict.collective else None
    name = next(iter(world.values())).path.name
    step = next((step for (its, at), step in steps.items() if its and at == number and its in name), None)
    groups = sorted({group for last, _ in stands_of(world).values() for group in last})[:MOST_GROUPS]
    rows = _alike(world, verdict, groups)[:MOST_ROWS]
    return HangRow(
        verdict.kind, verdict.text, verdict.sure, step, verdict.hung, groups, rows, list(verdict.notes)
    )


def _alike(world: dict[int, FlightDump], verdict: HangVerdict, groups: list[str]) -> list[HungRanks]:
    """Those that are missing first, then those that are in a collective."""
    rows: list[HungRanks] = []
    stands = stands_of(world) | dict.fromkeys(verdict.without_dump, ({}, None))
    for rank, (last, now) in sorted(stands.items()):
        numbers = [last.get(group, 0) for group in groups]
        each = _one(rank, rank in verdict.missing, numbers, now, groups)
        same = next((row for row in rows if structs.replace(each, ranks=row.ranks) == row), None)
        if same is None:
            rows.append(each)
        else:
            same.ranks.append(rank)
    return sorted(rows, key=lambda row: (not row.is_missing, row.open_in is None))


def _one(rank: int, missing: bool, last: list[int], now: Enqueued | None, groups: list[str]) -> HungRanks:
    if now is None:
        return HungRanks([rank], missing, last, None, "left no dump", [])
    group = name_of(now.group)
    at = groups.index(group) if now.is_open and group in groups else None
    where = f" at {now.call_site}" if now.call_site else ""
    text = f"{'in' if now.is_open else 'ended'} {now}{where}"
    return HungRanks([rank], missing, last, at, text, list(now.frames[:MOST_FRAMES]))
