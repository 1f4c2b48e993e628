"""Builds `report.json`: every number of the report, from the summaries of a run's reports, as plain data."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from rlprof_ops.analyze.causes.critical import chains, phase_slacks
from rlprof_ops.analyze.causes.dependencies import windows
from rlprof_ops.analyze.causes.what_if import what_ifs
from rlprof_ops.analyze.metrics.bandwidth import bandwidths
from rlprof_ops.analyze.metrics.collectives import CollectiveSkew, collective_skews
from rlprof_ops.analyze.metrics.intervals import Union
from rlprof_ops.analyze.metrics.intervals import merged as joined
from rlprof_ops.analyze.metrics.kernels import NameTotal
from rlprof_ops.analyze.metrics.phases import MAX_SEGMENTS, PHASE_ORDER
from rlprof_ops.analyze.metrics.stragglers import spreads, stragglers
from rlprof_ops.analyze.metrics.waiting import bubbles, waiting
from rlprof_ops.analyze.names import shortened
from rlprof_ops.analyze.output.causes import path_json, what_if_json
from rlprof_ops.analyze.output.findings import Causes, find
from rlprof_ops.analyze.run.clocks import probes_of
from rlprof_ops.analyze.run.identity import Report, read_json
from rlprof_ops.analyze.run.merge import Merged, Rank, RankStep, merge, rank_of
from rlprof_ops.analyze.run.run_steps import MIN_COVERED
from rlprof_ops.analyze.run.shared_gpus import shared_gpus
from rlprof_ops.analyze.run.summary import DeviceTimes, Result, Summary, Unread
from rlprof_ops.version import __version__

SCHEMA = 1
MAX_KERNELS = 300
Json = dict[str, Any]


def build(root: Path, reports: Sequence[Report], results: Sequence[Result]) -> Json:
    """The answer to a run folder; the schema is `analyze/output/report.schema.json`.

    Times are integer nanoseconds: `*_ns` durations, and starts relative to `t0_ns` (UTC).
    """
    read = [result for result in results if isinstance(result, Summary)]
    unread = [result for result in results if isinstance(result, Unread)]
    folder = root if root.is_dir() else root.parent
    nodes = {path.stem: read_json(path) for path in sorted((folder / "nodes").glob("*.json"))}
    merged = merge(read, probes_of(nodes), _nodes(folder))
    read = list(merged.summaries)
    spread, slow, gaps, waits = (
        spreads(merged.steps),
        stragglers(merged.steps, merged.clocks.residual_ns),
        bubbles(merged.steps),
        waiting(merged.steps),
    )
    skews = collective_skews(merged)
    graphs = windows(merged)
    causes = Causes(graphs, chains(merged, graphs), what_ifs(merged, graphs, slow))
    coverage = _coverage(folder, reports, read, unread)
    findings = find(merged, spread, slow, gaps, waits, skews, len(coverage["missing"]), len(unread), causes)
    index = {rank: i for i, rank in enumerate(merged.ranks)}
    t0 = min((row.start for row in merged.steps), default=min((s.start for s in read), default=0))
    phases = _phase_names(merged)
    of_rank: dict[Rank, list[Summary]] = defaultdict(list)
    for summary in read:
        of_rank[rank_of(summary)].append(summary)
    return {
        "schema": SCHEMA,
        "made_by": f"rlprof-ops {__version__}",
        "made_ns": time.time_ns(),
        "run": _run(folder, root),
        "t0_ns": t0,
        "findings": [finding.to_dict(index) for finding in findings],
        "coverage": coverage,
        "clocks": merged.clocks.to_dict(t0),
        "ranks": [_rank(rank, of_rank[rank]) for rank in merged.ranks],
        "phase_names": phases,
        "steps": _steps(merged, t0),
        "anatomy": _anatomy(merged, waits, index, phases, t0),
        "segments": [
            [index[row.rank], row.step, phases.index(s.phase), s.start - t0, s.end - s.start]
            for row in merged.steps
            for s in row.drawn
        ],
        "phases": [_spread(s, index) for s in spread],
        "critical_path": path_json(causes.chains, phase_slacks(graphs), index, t0),
        "what_if": what_if_json(causes.changes, index),
        "stragglers": [_ranked(asdict(s) | {"cost_ns": s.cost_ns, "rank": index[s.rank]}) for s in slow],
        "bubbles": [asdict(b) for b in gaps],
        "gpu": _gpu(read, index, t0),
        "shared_gpus": _shared(merged, index, t0),
        "kernels": _names(read, "kernels", {}),
        "ops": _names(read, "ops", _step_time(merged)),
        "collectives": _collectives(read, skews),
        "skews": [
            _ranked(asdict(s) | {"last": None if s.last is None else index[s.last]}) for s in skews[:100]
        ],
        "weight_sync": _weight_sync(merged),
        "memory": _memory(read, index),
    }


def _run(folder: Path, root: Path) -> Json:
    said = read_json(folder / "run.json")
    keys = (
        "job",
        "job_name",
        "framework",
        "nodes",
        "head",
        "command",
        "versions",
        "request",
        "world",
        "started_ns",
        "driver",
        "end",
    )
    return {"path": str(root.resolve()), **{key: said[key] for key in keys if key in said}}


def _nodes(folder: Path) -> list[str]:
    """The hosts of the run, as its record tells them."""
    told = read_json(folder / "run.json").get("nodes")
    return [name for name in told if isinstance(name, str)] if isinstance(told, list) else []


def _coverage(folder: Path, reports: Sequence[Report], read: list[Summary], unread: list[Unread]) -> Json:
    manifest = read_json(folder / "manifest.json")
    captures = [c for c in manifest.get("captures") or [] if isinstance(c, dict)]
    missing = [
        {
            "capture": str(c.get("id") or c.get("capture") or ""),
            "state": str(c.get("state")),
            "reason": str(c.get("reason") or ""),
        }
        for c in captures
        if c.get("state") in ("missing", "empty", "truncated")
    ]
    return {
        "planned": len(captures) if manifest else None,
        "arrived": len(captures) - len(missing) if manifest else None,
        "missing": missing,
        "reports": _read_reports(read),
        "unread": [{"path": u.report.path, "reason": u.reason} for u in unread],
        "listed": [
            {
                "path": r.path,
                "backend": r.backend,
                "worker": r.worker,
                "size_bytes": r.size_bytes,
                "modified_ns": r.modified_ns,
            }
            for r in reports
            if not r.readable
        ],
    }


def _read_reports(read: list[Summary]) -> list[Json]:
    """One row a report, however many processes it holds."""
    by_path: dict[str, list[Summary]] = defaultdict(list)
    for summary in read:
        by_path[summary.report.path].append(summary)
    return [
        {
            "path": path,
            "backend": parts[0].report.backend,
            "worker": parts[0].report.worker,
            "rank": parts[0].rank,
            "host": parts[0].host,
            "processes": len(parts),
            "steps": sorted(
                {
                    number
                    for part in parts
                    for step in part.steps
                    for number in range(step.step, step.step + (step.count or 1))
                }
            ),
            "size_bytes": parts[0].report.size_bytes,
            "events": sum(part.events for part in parts),
            "seconds": round(max(part.seconds for part in parts), 3),
            "truncated": parts[0].truncated,
            "damaged": parts[0].damaged,
        }
        for path, parts in by_path.items()
    ]


def _rank(rank: Rank, mine: list[Summary]) -> Json:
    names = [d.name for s in mine for d in s.devices if d.name]
    return {
        "worker": rank.worker,
        "rank": rank.rank,
        "host": rank.host,
        "pid": rank.pid,
        "told_apart": rank.told_apart,
        "controller": rank.is_controller,
        "backends": sorted({s.report.backend for s in mine}),
        "device": names[0] if names else "",
    }


def _phase_names(merged: Merged) -> list[str]:
    """All phases: the design's in the order of a step, then the others by their first time."""
    seen = dict.fromkeys(
        part.phase
        for row in sorted(merged.steps, key=lambda r: r.start)
        for part in sorted(row.phases, key=lambda part: int(part.when.start[0]))
    )
    return [p for p in PHASE_ORDER if p in seen] + [p for p in seen if p not in PHASE_ORDER]


def _steps(merged: Merged, t0: int) -> list[Json]:
    """One row a step, or a window that no mark divides; `count` is how many steps it holds."""
    by_step: dict[int, list[RankStep]] = defaultdict(list)
    for row in merged.steps:
        by_step[row.step].append(row)
    rows = []
    for number, group in sorted(by_step.items()):
        group = [row for row in group if row.marked] or group
        counts = [row.count for row in group if row.count is not None]
        start, end = min(r.start for r in group), max(r.end for r in group)
        longest = max(group, key=lambda r: r.duration_ns)
        if not longest.marked and sum(r.duration_ns for r in group) < MIN_COVERED * (end - start):
            start, end = longest.start, longest.end  # windows apart that nothing numbers are not one
        rows.append(
            {
                "step": number,
                "start_ns": start - t0,
                "duration_ns": end - start,
                "mean_rank_ns": round(fmean(r.duration_ns for r in group)),
                "ranks": len(group),
                "marked": all(r.marked for r in group),
                "count": max(counts) if counts else None,
            }
        )
    return rows


def _anatomy(
    merged: Merged, waits: Sequence[Any], index: dict[Rank, int], phases: list[str], t0: int
) -> list[Json]:
    """One row a rank and step: phases + idle = duration, and waiting + unexplained + uncaptured = idle."""
    waited = {(w.rank, w.step): w for w in waits}
    rows = []
    for row in merged.steps:
        wait = waited[row.rank, row.step]
        rows.append(
            {
                "rank": index[row.rank],
                "step": row.step,
                "start_ns": row.start - t0,
                "duration_ns": row.duration_ns,
                "marked": row.marked,
                "count": row.count,
                "opening_ns": row.opening_ns,
                "thinned": sum(p.stretches for p in row.phases) > MAX_SEGMENTS,
                "phases": [_phase(p, phases) for p in row.phases],
                "idle_ns": row.duration_ns - row.in_phases_ns,
                "waiting_ns": wait.for_ns,
                "unexplained_ns": wait.unexplained_ns,
                "uncaptured_ns": wait.uncaptured_ns,
                "gpu": row.gpu.to_dict() if row.gpu else None,
                "gpu_idle": row.idle.to_dict() if row.idle else None,
            }
        )
    return rows


def _phase(phase: Any, phases: list[str]) -> Json:
    said = {
        "phase": phases.index(phase.phase),
        "duration_ns": phase.duration_ns,
        "communication_ns": phase.communication_ns,
    }
    if phase.gpu is not None:
        said |= {"gpu": phase.gpu.to_dict(), "gpu_idle": phase.idle.to_dict() if phase.idle else None}
    return said


def _spread(spread: Any, index: dict[Rank, int]) -> Json:
    said: Json = asdict(spread)
    said["slowest"] = None if spread.slowest is None else index[spread.slowest]
    said["by_rank"] = [[index[rank], mean, own] for rank, mean, own in spread.by_rank]
    return _ranked(said)


def _ranked(said: Json) -> Json:
    return {key: round(value, 5) if isinstance(value, float) else value for key, value in said.items()}


def _gpu(read: list[Summary], index: dict[Rank, int], t0: int) -> list[Json]:
    return [
        {
            "rank": index[rank_of(s)],
            "report": s.report.path,
            "device": d.device,
            "uuid": d.uuid,
            "name": d.name,
            "start_ns": d.start - t0,
            "kernels": d.kernels,
            **d.times.to_dict(),
            "idle": d.idle.to_dict(),
        }
        for s in read
        for d in s.devices
    ]


def _shared(merged: Merged, index: dict[Rank, int], t0: int) -> list[Json]:
    """GPUs that several processes used, each once."""
    devices: dict[Rank, list[DeviceTimes]] = defaultdict(list)
    for summary in merged.summaries:
        devices[rank_of(summary)].extend(summary.devices)
    return [
        {
            "uuid": gpu.uuid,
            "name": gpu.name,
            "host": gpu.host,
            "ranks": [index[rank] for rank in gpu.ranks],
            "start_ns": gpu.start - t0,
            "window_ns": gpu.window_ns,
            "busy_ns": gpu.busy_ns,
            "idle_ns": gpu.idle_ns,
            "doubt_ns": gpu.doubt_ns,
        }
        for gpu in shared_gpus(devices)
    ]


def _step_time(merged: Merged) -> dict[str, int]:
    """worker -> the time of all of its ranks' steps."""
    times: dict[str, int] = defaultdict(int)
    for row in merged.steps:
        times[row.rank.worker] += row.duration_ns
    return times


def _names(read: list[Summary], what: str, whole: dict[str, int]) -> list[Json]:
    """Kernels or operators over all ranks of a worker, by phase; the longest first. Shares are of `whole`, or
    else of the sum, which would count operators inside of others twice.
    """
    totals: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    sums: dict[str, int] = defaultdict(int)
    for summary in read:
        rows: tuple[NameTotal, ...] = getattr(summary, what)
        for row in rows:
            total = totals[summary.report.worker, row.phase, row.name]
            total[0] += row.count
            total[1] += row.total_ns
            total[2] = max(total[2], row.max_ns)
            sums[summary.report.worker] += row.total_ns
    ranked = sorted(totals.items(), key=lambda item: -item[1][1])[:MAX_KERNELS]
    return [
        {
            "worker": worker,
            "phase": phase,
            "name": shortened(name, 400),
            "count": count,
            "total_ns": total,
            "max_ns": longest,
            "share": round(total / max(whole.get(worker, 0) or sums[worker], 1), 5),
        }
        for (worker, phase, name), (count, total, longest) in ranked
    ]


def _collectives(read: list[Summary], skews: Sequence[CollectiveSkew]) -> list[Json]:
    """Communication kernels over all ranks of a worker; bandwidths where the traces say how much was sent."""
    rows: list[Json] = [
        {
            "worker": total.worker,
            "op": total.op,
            "group": total.group,
            "group_size": total.group_size,
            "dtype": total.dtype,
            "count": total.count,
            "total_ns": total.total_ns,
            "min_ns": total.min_ns,
            "transfer_ns": total.transfer_ns // max(total.count, 1),
            "message_bytes": total.message_bytes or None,
            "algorithm_gb_per_s": total.rate(total.message_bytes),
            "bus_gb_per_s": total.rate(total.bus_bytes),
        }
        for total in bandwidths(((s.report.worker, c) for s in read for c in s.collectives), skews)
    ]
    rows.sort(key=lambda row: -int(row["total_ns"]))
    return rows[:200]


def _weight_sync(merged: Merged) -> list[Json]:
    """Each step's weight sync: from the first rank's begin to the last one's end, and what each worker
    spent in it.
    """
    rows = []
    steps: dict[int, dict[str, list[Union]]] = defaultdict(lambda: defaultdict(list))
    for row in merged.steps:
        for part in row.phases:
            if part.phase == "weight_sync" and row.count == 1 and not row.rank.is_controller:
                steps[row.step][row.rank.worker].append(part.when)
    for number, parts in sorted(steps.items()):
        by_worker = {worker: joined(*unions) for worker, unions in parts.items()}
        every = joined(*by_worker.values())
        start, end, busy = int(every.start[0]), int(every.end[-1]), every.length
        spans = {worker: int(when.end[-1] - when.start[0]) for worker, when in by_worker.items()}
        rows.append(
            {"step": number, "total_ns": end - start, "by_worker_ns": spans, "between_ns": end - start - busy}
        )
    return rows


def _memory(read: list[Summary], index: dict[Rank, int]) -> list[Json]:
    return [
        {
            "rank": index[rank_of(s)],
            "device": m.device,
            "phase": m.phase,
            "allocated_bytes": m.allocated_bytes,
            "reserved_bytes": m.reserved_bytes,
        }
        for s in read
        for m in s.memory
    ]
