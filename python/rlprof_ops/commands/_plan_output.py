"""A plan for people (a table) and for programs (JSON)."""

from __future__ import annotations

from typing import Any

import click

from rlprof_ops.request import Plan, PlanRow, ProfileRequest
from rlprof_ops.request.planning import size_rule
from rlprof_ops.request.step_part import READERS
from rlprof_ops.words import size as in_words

HEADINGS = ("#", "backend", "worker", "ranks", "windows", "each", "reports", "disk")
WINDOWS_SHOWN = 6


def plan_json(request: ProfileRequest, plan: Plan) -> dict[str, Any]:
    """The whole plan. `reports` and `size_bytes` are null while the world is unknown or a window open."""
    return {
        "request": request.to_dict(),
        "exact": plan.exact,
        "reports": plan.reports,
        "size_bytes": plan.size_bytes,
        "size_rule": size_rule(),
        "rows": [
            {
                "capture": row.index + 1,
                "backend": row.backend,
                "worker": row.worker,
                "ranks": row.ranks,
                "windows": [[w.start, w.stop] for w in row.windows],
                "each": row.each,
                **{name: (row.part.to_dict() if row.part else {}).get(name) for name in READERS},
                "when": row.when.to_dict() if row.when else None,
                "reports": row.reports,
                "formula": row.formula,
                "size_bytes": row.size_bytes,
            }
            for row in plan.rows
        ],
        "captures": [capture.id for capture in plan.captures],
        "warnings": list(plan.warnings),
    }


def print_plan(request: ProfileRequest, plan: Plan) -> None:
    """A table, the totals with their rule, where reports will be, and the warnings."""
    if plan.rows:
        _table([_cells(row) for row in plan.rows])
        total = "unknown" if plan.reports is None else str(plan.reports)
        total += ", and what `when` opens" if any(row.when for row in plan.rows) else ""
        size = "unknown" if plan.size_bytes is None else f"about {in_words(plan.size_bytes)}"
        click.echo(f"\nreports: {total}    disk: {size} ({size_rule()})")
        name = "<worker>_rank<R>_step<A>-<B>_<host>_<pid>.*"
        click.echo(f"where:   <run folder>/profiles/<backend>/<worker>/rank<R>/{name}")
        for folder in dict.fromkeys(filter(None, (request.folder(row.backend) for row in plan.rows))):
            click.echo(f"         {folder}/ (a copy)")
    if request.steps_from is not None:
        click.echo(f"steps:   known from {request.steps_from}, unless a process tells them")
    for text in plan.warnings:
        click.echo(f"warning: {text}", err=True)


def _cells(row: PlanRow) -> tuple[str, ...]:
    ranks = row.ranks_text if row.ranks is None or row.ranks_text != "all" else f"all {row.ranks}"
    windows = [str(window) for window in row.windows]
    shown = " ".join(windows[:WINDOWS_SHOWN]) + (
        f" … ({len(windows)})" if len(windows) > WINDOWS_SHOWN else ""
    )
    if row.part is not None:
        shown += f" at {row.part}"
    if row.when is not None:
        shown = f"when {row.when}"
    reports = row.formula if row.reports is None else str(row.reports)
    size = "?" if row.size_bytes is None else in_words(row.size_bytes)
    return (str(row.index + 1), row.backend, row.worker, ranks, shown, row.each, reports, size)


def _table(rows: list[tuple[str, ...]]) -> None:
    """With rich on a terminal; plain columns otherwise, so that a log or a pipe stays readable."""
    import sys

    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
            from rich.text import Text
        except ImportError:
            pass
        else:
            table = Table(*HEADINGS)
            for row in rows:
                table.add_row(*(Text(cell) for cell in row))
            Console().print(table)
            return
    widths = [max(len(row[i]) for row in [HEADINGS, *rows]) for i in range(len(HEADINGS))]
    for row in [HEADINGS, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
