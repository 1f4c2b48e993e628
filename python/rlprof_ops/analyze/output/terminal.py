"""The report in the terminal: the largest findings in words, then the numbers behind them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlprof_ops.analyze.output.rollout_lines import mfu_lines, rollout_lines
from rlprof_ops.analyze.output.text import counted, duration, percent, ranks_read, size, step_runs, unmarked
from rlprof_ops.analyze.report_model import Answer, CriticalPath, WhatIfRow
from rlprof_ops.collect.harvest.manifest_table import printable

FINDINGS_FIRST = 3
MAX_ROWS = 24
FEW_ROWS = 8
MAX_LINES = 6
WIDTH_OF_A_LOG = 160
_SPACE = re.compile(r"\s")


def standard_output() -> Console:
    """For a summary: as wide as the terminal, and in a log or a pipe so wide that no word is cut."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDTH_OF_A_LOG)


def show(answer: Answer, console: Console) -> None:
    """Prints the summary of a report. Everything that comes from a run is escaped."""
    console.print(f"[bold]{literal(title(answer))}[/]  {literal(str(answer.run['path']))}")
    console.print(f"{literal(coverage_line(answer))}\n")
    for sentence in unmarked(answer.steps):
        console.print(f"[yellow]{literal(sentence)}[/]", highlight=False)
    for number, finding in enumerate(answer.findings[:FINDINGS_FIRST], 1):
        console.print(f"[bold]{number}.[/] {literal(finding.text)}")
        if finding.saves_ns:
            whole = sum(step.duration_ns for step in answer.steps)
            count = sum(step.count or 1 for step in answer.steps)
            share = percent(finding.saves_ns * count / max(whole, 1))
            said = f"Mended, a step is {share} shorter ({duration(finding.saves_ns)})."
            place = f" See report.html{finding.link}" if finding.link else ""
            console.print(f"   {literal(said + place)}", highlight=False, soft_wrap=True)
        if finding.advice:
            console.print(f"   [dim]{literal(finding.advice)}[/]", highlight=False)
    if not answer.findings:
        console.print("No finding is large enough for a sentence.")
    _causes(answer, console)
    rollout = rollout_lines(answer)
    if rollout:
        console.print("[bold]Generation[/]")
    for line in rollout:
        console.print(f"  {literal(line)}", highlight=False)
    for table in tables(answer, console.width):
        console.print(table)
    for line in mfu_lines(answer.mfu):
        console.print(literal(line), highlight=False)
    _said_of_files(answer, console)


def literal(text: str) -> str:
    """A text of a run in rich's markup: shown as it is on one line, never obeyed by rich or by a terminal."""
    return escape(printable(_SPACE.sub(" ", text)))


def title(answer: Answer) -> str:
    """The job's name and number."""
    return f"{answer.run.get('job_name') or 'run'} {answer.run.get('job') or ''}".strip()


def coverage_line(answer: Answer) -> str:
    """What the report stands on."""
    return (
        f"{counted(len(answer.coverage.reports), 'report')} read ·"
        f" {ranks_read(len(answer.ranks), answer.coverage.not_read)} ·"
        f" steps {step_runs(answer.steps) or 'none'} · clocks {_clocks(answer)}"
    )


def tables(answer: Answer, width: int) -> list[Table]:
    """Phases, GPUs, kernels and operators, as far as the run has them; `width` is that of the terminal."""
    found = [_phases(answer)] if answer.phases else []
    found += [_gpu(answer)] if answer.gpu else []
    found += [_kernels(answer, width)] if answer.kernels else []
    return found + ([_operators(answer, width)] if answer.operators else [])


def _causes(answer: Answer, console: Console) -> None:
    lines = path_lines(answer.critical_path, [rank.label for rank in answer.ranks])
    if lines:
        console.print("\n[bold]What decided the length of a step[/]")
    for line in lines:
        console.print(literal(line), highlight=False)
    changes = what_if_lines(answer.what_if)
    if changes:
        console.print("[bold]What if[/]")
    for line in changes:
        console.print(f"  {literal(line)}", highlight=False)


def path_lines(path: CriticalPath, names: Sequence[str]) -> list[str]:
    """The chain of the step that is nearest to the median length, and the slack of what is on no path."""
    if not path.steps:
        return [path.untold] if path.untold else []
    by_length = sorted(path.steps, key=lambda chain: chain.length_ns)
    usual = by_length[len(by_length) // 2]
    links = " → ".join(
        f"{link.phase} of {names[link.rank]} {duration(link.duration_ns)}" for link in usual.links
    )
    lines = [
        f"Step {usual.step} took {duration(usual.length_ns)} because of: {links};"
        f" between them {duration(usual.rest_ns)}."
    ]
    spare = [
        f"{s.phase} of {s.worker} {duration(s.tightest_ns)}"
        for s in sorted(path.slack, key=lambda s: -s.tightest_ns)
        if not s.on_path
    ]
    if spare:
        lines.append(f"Could have taken longer, for nobody waited: {', '.join(spare[:MAX_LINES])}.")
    return lines


def what_if_lines(found: Sequence[WhatIfRow]) -> list[str]:
    return [
        f"{w.change}: step {percent(w.share)} shorter ({duration(w.saves_ns)})" for w in found[:MAX_LINES]
    ]


def _phases(answer: Answer) -> Table:
    table = Table(
        title="Where a step goes (mean over ranks and steps)", title_justify="left", title_style="bold"
    )
    for name in ("worker", "phase"):
        table.add_column(name)
    for name in ("a step", "share", "in collectives", "max/mean", "ranks"):
        table.add_column(name, justify="right")
    world = {row.worker: row.world for row in answer.coverage.ranks}
    for row in answer.phases[:MAX_ROWS]:
        slow = {s.phase for s in answer.stragglers if answer.ranks[s.rank].worker == row.worker}
        mark = " [red]straggler[/]" if row.phase in slow else ""
        talk = duration(row.communication_ns) if row.communication_ns else "-"
        table.add_row(
            literal(row.worker),
            literal(row.phase) + mark,
            duration(row.mean_ns),
            percent(row.share_of_step),
            talk,
            f"{row.imbalance:.2f}" if row.ranks > 1 else "-",
            f"{row.ranks} of {world[row.worker]}" if world.get(row.worker, 0) > row.ranks else str(row.ranks),
        )
    count_rest(table, len(answer.phases) - MAX_ROWS)
    for worker in dict.fromkeys(r.worker for r in answer.ranks):
        rows = [a for a in answer.anatomy if answer.ranks[a.rank].worker == worker]
        if rows:
            steps = sum(a.count or 1 for a in rows)
            whole = sum(a.duration_ns for a in rows)
            unseen = sum(a.uncaptured_ns for a in rows)
            idle = sum(a.idle_ns for a in rows) - unseen
            marks = any(a.phases for a in rows)
            for label, part in (
                ("in no phase", idle),
                ("not captured" if marks else "marks no phase", unseen),
            ):
                if part or (label == "in no phase" and not unseen):
                    share = percent(part / whole if whole else 0)
                    table.add_row(
                        literal(worker), f"[dim]{label}[/]", duration(part / steps), share, "-", "-", ""
                    )
    return table


def _gpu(answer: Answer) -> Table:
    table = Table(title="GPUs over their captures", title_justify="left", title_style="bold")
    table.add_column("rank")
    for name in ("window", "compute", "comm. exposed", "memcpy exposed", "idle"):
        table.add_column(name, justify="right")
    slow = {rank for row in answer.stragglers for rank in row.ranks}
    rows = list(answer.gpu)
    if len(rows) > MAX_ROWS:  # those that are worth a look: stragglers, then those that idle most
        rows.sort(key=lambda row: (row.rank not in slow, -row.idle_ns / max(row.window_ns, 1)))
    for row in rows[:MAX_ROWS]:
        rank, window = answer.ranks[row.rank], max(row.window_ns, 1)
        shares = [
            part / window
            for part in (row.compute_ns, row.exposed_communication_ns, row.exposed_memcpy_ns, row.idle_ns)
        ]
        table.add_row(
            literal(rank.label),
            duration(row.window_ns),
            *(percent(s) for s in shares),
        )
    if len(rows) > MAX_ROWS:
        table.add_row(f"… {len(rows) - MAX_ROWS} more that idle less, in report.html", end_section=True)
    for gpu in answer.shared_gpus[:MAX_ROWS]:
        users = ", ".join(f"{answer.ranks[i].worker} {answer.ranks[i].rank}" for i in gpu.ranks)
        idle = percent(gpu.idle_ns / max(gpu.window_ns, 1))
        table.add_row(
            literal(f"one GPU: {users}"), duration(gpu.window_ns), "-", "-", "-", f"{idle} of the GPU"
        )
    count_rest(table, len(answer.shared_gpus) - MAX_ROWS)
    return table


def _kernels(answer: Answer, width: int) -> Table:
    table = Table(title="Longest kernels", title_justify="left", title_style="bold")
    # numbers are never cut: at 80 columns it is the names that give way
    table.add_column("kernel", no_wrap=True, overflow="ellipsis", max_width=max(20, min(60, width - 54)))
    table.add_column("phase", no_wrap=True, overflow="ellipsis", max_width=14)
    for name in ("total", "share", "calls"):
        table.add_column(name, justify="right", no_wrap=True, min_width=7)
    kernels = [k for k in answer.kernels if k.name != "(others)"]
    for row in kernels[:FEW_ROWS]:
        table.add_row(
            literal(row.name),
            literal(row.phase or "-"),
            duration(row.total_ns),
            percent(row.share),
            f"{row.count:,}",
        )
    count_rest(table, len(kernels) - FEW_ROWS)
    return table


def _operators(answer: Answer, width: int) -> Table:
    table = Table(title="FLOPs of operators, by shape", title_justify="left", title_style="bold")
    table.add_column("operator", no_wrap=True, overflow="ellipsis", max_width=max(20, min(60, width - 51)))
    for name in ("GPU time", "calls", "TFLOP/s", "of peak"):
        table.add_column(name, justify="right", no_wrap=True, min_width=7)
    for row in answer.operators[:FEW_ROWS]:
        table.add_row(
            literal(f"{row.name.removeprefix('aten::')} {row.inputs.replace(', ', ',')}"),
            duration(row.total_ns),
            f"{row.count:,}",
            f"{row.tflops:.3g}",
            "-" if row.share is None else f"{percent(row.share)} {row.bound or ''}",
        )
    count_rest(table, len(answer.operators) - FEW_ROWS)
    return table


def count_rest(table: Table, left: int) -> None:
    """Says what a table leaves out."""
    if left > 0:
        table.add_row(f"… {left:,} more", end_section=True)


def _said_of_files(answer: Answer, console: Console) -> None:
    coverage = answer.coverage
    cut = [row for row in coverage.reports if row.truncated]
    damaged = [row for row in coverage.reports if row.damaged]
    for lines in (
        [f"[red]{literal(m.state)}[/] {literal(f'{m.capture} {m.reason}')}" for m in coverage.missing],
        [f"[red]not read[/] {literal(f'{bad.path}: {bad.reason}')}" for bad in coverage.unread],
        [f"[yellow]truncated[/] {literal(f'{row.path}: {row.truncated}')}" for row in cut],
        [
            f"[yellow]damaged[/] {literal(row.path)}: {row.damaged:,} of {row.events + row.damaged:,} events"
            " could not be read and are left out"
            for row in damaged
        ],
        [f"listed only: {literal(other.path)} ({size(other.size_bytes)})" for other in coverage.listed],
    ):
        for line in first(lines, MAX_ROWS):
            console.print(line, highlight=False)


def first(lines: Sequence[str], most: int) -> list[str]:
    """At most so many lines, and one that says how many are left out."""
    return [*lines[:most], *(f"… {len(lines) - most:,} more, in report.html" for _ in lines[most : most + 1])]


def _clocks(answer: Answer) -> str:
    residual = answer.clocks.residual_ns
    hosts = len(answer.clocks.hosts)
    if hosts <= 1:
        return "of one host"
    return (
        "of hosts not aligned (no shared collective, no probe)"
        if residual is None
        else f"aligned to {duration(residual)}"
    )
