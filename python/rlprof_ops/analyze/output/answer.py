"""Builds `report.json`: every number of the report, from the summaries of a run's reports, as plain data."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from msgspec import UNSET

from rlprof_ops.analyze.causes.collectives import collective_rows, collective_skews, slow_groups
from rlprof_ops.analyze.causes.critical import chains, phase_slacks
from rlprof_ops.analyze.causes.dependencies import windows
from rlprof_ops.analyze.causes.pauses import find_pauses
from rlprof_ops.analyze.causes.stages import find_stages
from rlprof_ops.analyze.causes.steady import steady, why_no_chain
from rlprof_ops.analyze.causes.stragglers import spreads, stragglers
from rlprof_ops.analyze.causes.waiting import Waiting, bubbles, waiting
from rlprof_ops.analyze.causes.what_if import what_ifs
from rlprof_ops.analyze.made_of import goes_on
from rlprof_ops.analyze.metrics.phases import MAX_SEGMENTS, PHASE_ORDER
from rlprof_ops.analyze.model_size.utilisation import StatedModel, utilisation
from rlprof_ops.analyze.output.counter_lines import counter_rows
from rlprof_ops.analyze.output.findings import Causes, find, so_far
from rlprof_ops.analyze.output.gpu_findings import gpu_findings
from rlprof_ops.analyze.output.tables.launch_tables import (
    kernel_duration_rows,
    launch_queue_rows,
    launch_rows,
    operator_rows,
)
from rlprof_ops.analyze.output.tables.work_tables import (
    MAX_COLLECTIVES,
    copy_rows,
    gpu_rows,
    kernel_class_rows,
    kernel_spans,
    memory_rows,
    name_rows,
    pipeline_rows,
    serving_rows,
    shared_gpu_rows,
    step_times,
    weight_sync_rows,
)
from rlprof_ops.analyze.report_model import (
    SCHEMA,
    AnatomyRow,
    Answer,
    Coverage,
    CriticalPath,
    Finding,
    HangRow,
    ListedRow,
    MissingRow,
    PhasePart,
    RankRow,
    ReportRow,
    StepRow,
    UnreadRow,
)
from rlprof_ops.analyze.run.clocks import probes_of
from rlprof_ops.analyze.run.engine import default_workers
from rlprof_ops.analyze.run.identity import ReportFile
from rlprof_ops.analyze.run.job_ranks import worker_ranks
from rlprof_ops.analyze.run.merge import Merged, Rank, RankStep, merge, rank_of
from rlprof_ops.analyze.run.process_summary import PhaseTime, Result, Summary, Unread
from rlprof_ops.analyze.run.run_steps import MIN_COVERED
from rlprof_ops.analyze.whole_run.run_data import WholeRun
from rlprof_ops.analyze.whole_run.section import whole_run
from rlprof_ops.backends import report_names
from rlprof_ops.host import foreign
from rlprof_ops.version import __version__
from rlprof_ops.words import counted

_AROUND_NS = 2_000_000_000  # that the curves show before and after a captured step


def build(
    root: Path,
    reports: Sequence[ReportFile],
    results: Sequence[Result],
    model: StatedModel | None = None,
    of: str = "",
) -> Answer:
    """The answer to a run folder; `rlprof schema report` is its schema. `model`: what was told of the
    model that is trained. `of`: what `made_of` said before the reports were looked for.

    Times are integer nanoseconds: `*_ns` durations, and starts relative to `t0_ns` (UTC).
    """
    read = [result for result in results if isinstance(result, Summary)]
    unread = [result for result in results if isinstance(result, Unread)]
    folder = root if root.is_dir() else root.parent
    nodes = {path.stem: foreign.read_object(path) for path in sorted((folder / "nodes").glob("*.json"))}
    merged = merge(read, probes_of(nodes), _nodes(folder))
    read = list(merged.summaries)
    stages = find_stages(merged)
    spread, slow, gaps, waits = (
        spreads(merged.steps),
        stragglers(merged.steps, merged.clocks.residual_ns, stages),
        bubbles(merged.steps),
        waiting(merged.steps),
    )
    skews = collective_skews(merged)
    groups, paused = slow_groups(merged, skews), find_pauses(merged)
    graphs = windows(merged)
    replayed = graphs or steady(merged)
    causes = Causes(
        replayed,
        chains(merged, graphs),
        what_ifs(merged, replayed, slow, stages, groups, paused),
        groups,
        paused,
    )
    world = _world(folder)
    coverage = _coverage(folder, reports, merged, unread, world)
    index = merged.index
    t0 = merged.t0
    whole = _whole_run(folder, t0, _steps(merged, t0), coverage)
    pipes = pipeline_rows(read)
    kernels, classes, copies = name_rows(read, "kernels", {}), kernel_class_rows(read), copy_rows(read)
    launches = launch_rows(read)
    findings = find(
        merged, spread, slow, gaps, waits, list(skews.values()), coverage, causes,
        pipes, gpu_findings(merged, classes, kernels, copies, launches), whole,
    )  # fmt: skip
    hangs, of_hangs = _hangs(folder)
    hung = [each for each, row in zip(of_hangs, hangs, strict=False) if row.hung]
    findings = [*hung, *findings, *(each for each in of_hangs if each not in hung)]
    if goes_on(folder) and results:
        ahead = sum(report.alone for report in reports)
        findings.insert(0, so_far(len({result.report.path for result in results}), ahead))
    phases = _phase_names(merged)
    of_rank: dict[Rank, list[Summary]] = defaultdict(list)
    for summary in read:
        of_rank[rank_of(summary)].append(summary)
    ranks = [_rank(rank, of_rank[rank]) for rank in merged.ranks]
    gpus = gpu_rows(read, index, t0)
    return Answer(
        schema=SCHEMA,
        made_by=f"rlprof-ops {__version__}",
        made_ns=time.time_ns(),
        run=_run(folder, root),
        t0_ns=t0,
        findings=findings,
        coverage=coverage,
        clocks=merged.clocks.as_rows(t0),
        ranks=ranks,
        phase_names=phases,
        steps=_steps(merged, t0),
        anatomy=_anatomy(merged, waits, phases),
        segments=[
            [row.rank.index, row.step, phases.index(s.phase), s.start - t0, s.end - s.start]
            for row in merged.steps
            for s in row.drawn
        ],
        phases=list(spread),
        critical_path=CriticalPath(
            list(causes.chains), phase_slacks(graphs), why_no_chain(merged, bool(replayed))
        ),
        what_if=list(causes.changes),
        stragglers=list(slow),
        bubbles=list(gaps),
        gpu=gpus,
        shared_gpus=shared_gpu_rows(merged),
        kernels=kernels,
        kernel_classes=classes,
        copies=copies,
        serving=serving_rows(read),
        pipeline=pipes,
        mfu=None if model is None else utilisation(model, spread, ranks, gpus, whole, world),
        kernel_spans=kernel_spans(merged, index, t0),
        counters=counter_rows(merged),
        ops=name_rows(read, "ops", step_times(merged)),
        collectives=collective_rows(read, skews, groups)[:MAX_COLLECTIVES],
        skews=list(skews.values())[:100],
        weight_sync=weight_sync_rows(merged),
        memory=memory_rows(read, index),
        whole_run=whole,
        hangs=hangs,
        launches=launches,
        launch_queues=launch_queue_rows(read, index),
        kernel_durations=kernel_duration_rows(read),
        operators=operator_rows(read),
        call_paths=name_rows(read, "paths", step_times(merged)),
        made_of=of,
    )


def _hangs(folder: Path) -> tuple[list[HangRow], list[Finding]]:
    # Imported only where there may be one: the recorder's room brings asyncio and urllib with it.
    if not ((folder / "recorder/findings.jsonl").exists() or any(folder.glob("nodes/*/torch_fr"))):
        return [], []
    from rlprof_ops.analyze.hang.hang_rows import hang_findings, hang_rows

    hangs = hang_rows(folder)
    return hangs, hang_findings(hangs)


def _world(folder: Path) -> dict[str, int]:
    """worker -> its ranks in the whole job, as the manifest saw them."""
    told = foreign.read_object(folder / "manifest.json").get("world")
    counts = told.items() if isinstance(told, dict) else ()
    return {str(worker): count for worker, said in counts if (count := foreign.whole(said)) is not None}


def _whole_run(folder: Path, t0: int, steps: Sequence[StepRow], coverage: Coverage) -> WholeRun | None:
    captured = [
        (t0 + row.start_ns - _AROUND_NS, t0 + row.start_ns + row.duration_ns + _AROUND_NS) for row in steps
    ]
    taken: dict[tuple[str, int], list[int]] = defaultdict(list)
    for report in coverage.reports:
        if report.steps:
            taken[report.backend, report.steps[0]].append(report.rank)
    windows = [
        (step, f"{backend} of {counted(len(ranks), 'rank')}") for (backend, step), ranks in taken.items()
    ]
    return whole_run(folder, t0, captured, windows, default_workers())


def _run(folder: Path, root: Path) -> dict[str, object]:
    said = foreign.read_object(folder / "run.json")
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
    told = foreign.read_object(folder / "run.json").get("nodes")
    return [name for name in told if isinstance(name, str)] if isinstance(told, list) else []


def _coverage(
    folder: Path,
    reports: Sequence[ReportFile],
    merged: Merged,
    unread: list[Unread],
    world: Mapping[str, int],
) -> Coverage:
    manifest = foreign.read_object(folder / "manifest.json")
    captures = [row for row in foreign.a_list(manifest.get("captures")) if isinstance(row, dict)]
    missing, cut_short = _not_whole(captures, reports, {u.report.path for u in unread})
    planned = {(foreign.text(row.get("worker")), foreign.whole(row.get("rank")) or 0) for row in captures}
    return Coverage(
        planned=len(captures) if manifest else None,
        arrived=len(captures) - len(missing) if manifest else None,
        missing=missing,
        reports=_read_reports(merged.summaries, cut_short),
        unread=[
            UnreadRow(path, "; ".join(filter(None, (u.reason, cut_short.get(path)))))
            for u in unread
            for path in (u.report.path,)
        ],
        listed=[
            ListedRow(
                path=r.path,
                backend=r.backend,
                worker=r.worker,
                size_bytes=r.size_bytes,
                modified_ns=r.modified_ns,
            )
            for r in reports
            if not r.readable
        ],
        ranks=worker_ranks(merged, world, planned or None),
    )


def _not_whole(
    captures: list[dict[str, object]], reports: Sequence[ReportFile], unread: set[str]
) -> tuple[list[MissingRow], dict[str, str]]:
    """The planned captures without a report, and of the reports that are here why they were cut short.

    The manifest may be older than the last reports that came home.
    """
    here = {report.path for report in reports if report.readable}
    by_window = {
        report_names.window_key(
            report.backend, report.worker, report.rank, report.start, report.phase
        ): report.path
        for report in reports
        if report.readable
    }
    missing = []
    cut_short: dict[str, str] = {}
    for row in captures:
        state, path, reason = (foreign.text(row.get(key)) for key in ("state", "report", "reason"))
        if state not in ("missing", "empty", "truncated"):
            continue
        backend, worker, phase = (foreign.text(row.get(key)) for key in ("backend", "worker", "phase"))
        rank, start = (foreign.whole(row.get(key)) for key in ("rank", "start"))
        if path not in here:
            path = by_window.get(report_names.window_key(backend, worker, rank, start, phase), "")
        if not path or (state == "empty" and path not in unread):
            missing.append(MissingRow(foreign.text(row.get("id")), state, reason))
        elif state == "truncated":
            cut_short[path] = reason or "its window was cut short"
    return missing, cut_short


def _read_reports(read: Sequence[Summary], cut_short: Mapping[str, str]) -> list[ReportRow]:
    """One row a report, however many processes it holds."""
    by_path: dict[str, list[Summary]] = defaultdict(list)
    for summary in read:
        by_path[summary.report.path].append(summary)
    return [
        ReportRow(
            path=path,
            backend=parts[0].report.backend,
            worker=parts[0].report.worker,
            rank=parts[0].rank,
            host=parts[0].host,
            processes=len(parts),
            steps=sorted(
                {
                    number
                    for part in parts
                    for step in part.steps
                    for number in range(step.step, step.step + (step.count or 1))
                }
            ),
            size_bytes=parts[0].report.size_bytes,
            events=sum(part.events for part in parts),
            seconds=round(max(part.seconds for part in parts), 3),
            truncated=parts[0].truncated or cut_short.get(path, ""),
            damaged=parts[0].damaged,
        )
        for path, parts in by_path.items()
    ]


def _rank(rank: Rank, mine: list[Summary]) -> RankRow:
    names = [d.name for s in mine for d in s.devices if d.name]
    return RankRow(
        worker=rank.worker,
        rank=rank.rank,
        host=rank.host,
        pid=rank.pid,
        told_apart=rank.told_apart,
        controller=rank.is_controller,
        backends=sorted({s.report.backend for s in mine}),
        device=names[0] if names else "",
    )


def _phase_names(merged: Merged) -> list[str]:
    """All phases: the design's in the order of a step, then the others by their first time."""
    seen = dict.fromkeys(
        part.phase
        for row in sorted(merged.steps, key=lambda r: r.start)
        for part in sorted(row.phases, key=lambda part: int(part.when.start[0]))
    )
    return [p for p in PHASE_ORDER if p in seen] + [p for p in seen if p not in PHASE_ORDER]


def _steps(merged: Merged, t0: int) -> list[StepRow]:
    """One row a step, or a window that no mark divides; `count` is how many steps it holds. On hosts whose
    clocks are not known to each other it is as long as on the one where it is longest.
    """
    by_step: dict[int, list[RankStep]] = defaultdict(list)
    for row in merged.steps:
        by_step[row.step].append(row)
    rows = []
    for number, group in sorted(by_step.items()):
        group = [row for row in group if row.marked] or group
        counts = [row.count for row in group if row.count is not None]
        clocks: dict[str, list[RankStep]] = defaultdict(list)
        for row in group:
            clocks[merged.clocks.shared_by(row.rank.host)].append(row)
        spans = [(min(r.start for r in mine), max(r.end for r in mine)) for mine in clocks.values()]
        start, end = max(spans, key=lambda span: span[1] - span[0])
        longest = max(group, key=lambda r: r.duration_ns)
        start, end = merged.periods.get(number, (start, end))
        if not longest.marked and sum(r.duration_ns for r in group) < MIN_COVERED * (end - start):
            start, end = longest.start, longest.end  # windows apart that nothing numbers are not one
        rows.append(
            StepRow(
                step=number,
                start_ns=start - t0,
                duration_ns=end - start,
                mean_rank_ns=round(fmean(r.duration_ns for r in group)),
                ranks=len(group),
                marked=all(r.marked for r in group),
                count=max(counts) if counts else None,
            )
        )
    return rows


def _anatomy(merged: Merged, waits: Sequence[Waiting], phases: list[str]) -> list[AnatomyRow]:
    """One row a rank and step: phases + idle = duration, and waiting + unexplained + uncaptured = idle."""
    waited = {(w.rank, w.step): w for w in waits}
    rows = []
    for row in merged.steps:
        wait = waited[row.rank, row.step]
        rows.append(
            AnatomyRow(
                rank=row.rank.index,
                step=row.step,
                start_ns=row.start - merged.t0,
                duration_ns=row.duration_ns,
                marked=row.marked,
                count=row.count,
                opening_ns=row.opening_ns,
                thinned=sum(p.stretches for p in row.phases) > MAX_SEGMENTS,
                phases=[_phase(p, phases) for p in row.phases],
                idle_ns=row.duration_ns - row.in_phases_ns,
                waiting_ns=wait.for_ns,
                unexplained_ns=wait.unexplained_ns,
                uncaptured_ns=wait.uncaptured_ns,
                gpu=row.gpu,
                gpu_idle=row.idle,
            )
        )
    return rows


def _phase(phase: PhaseTime, phases: list[str]) -> PhasePart:
    """The GPU's times are absent where none of its work was recorded."""
    gpu = UNSET if phase.gpu is None else phase.gpu
    idle = UNSET if phase.gpu is None else phase.idle
    return PhasePart(phases.index(phase.phase), phase.duration_ns, phase.communication_ns, gpu, idle)
