"""The table of captures that people read at the end of a job; plain text, for `rlprof harvest`, `rlprof
demo` and job logs.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlprof_ops.collect.harvest.manifest import CaptureResult, Manifest, Report
from rlprof_ops.request import Window
from rlprof_ops.words import size

COLUMNS = ("worker", "rank", "host", "steps", "backend", "state", "size", "file")


def render(manifest: Manifest, *, limit: int = 200) -> str:
    """Captures as a table, reasons below, then one line of counts. More than `limit` rows: those that are
    not whole first.
    """
    by_path = {report.path: report for report in manifest.reports}
    captures = (
        sorted(manifest.captures, key=lambda capture: capture.state == "ok")
        if len(manifest.captures) > limit
        else list(manifest.captures)
    )
    rows = [_row(capture, by_path) for capture in captures[:limit]]
    rows += [_stray(report) for report in manifest.unplanned[: max(0, limit - len(rows))]]
    lines = grid(COLUMNS, rows, right=("rank", "size")) if rows else []
    left = len(manifest.captures) + len(manifest.unplanned) - len(rows)
    if left > 0:
        lines.append(f"… and {left} more in manifest.json")
    lines += reasons(manifest)
    lines += [f"heard: {printable(manifest.heard)}"] if manifest.heard else []
    lines += [f"note: {printable_lines(note)}" for note in manifest.notes]
    lines += [f"found: {printable(finding['text'])}" for finding in manifest.findings]
    lines.append(summary(manifest))
    return "\n".join(lines)


def summary(manifest: Manifest) -> str:
    """`12 captures planned: 10 ok, 2 missing; 1 report outside the plan`."""
    coverage = manifest.coverage
    planned = coverage["planned"]
    if not planned:
        text = "nothing was planned"
    else:
        parts = [
            f"{coverage[state]} {state}"
            for state in ("ok", "recovered", "empty", "truncated", "missing")
            if coverage[state]
        ]
        text = f"{planned} capture{'s' if planned != 1 else ''} planned: {', '.join(parts)}"
    strays = coverage["unplanned"]
    return text + (f"; {strays} report{'s' if strays != 1 else ''} outside the plan" if strays else "")


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> list[str]:
    """Lines of a table with a header, columns as wide as their widest cell."""
    cells = [list(columns), *[[printable(cell) for cell in row] for row in rows]]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(columns, row, widths, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return [line(cells[0]), "  ".join("-" * width for width in widths), *map(line, cells[1:])]


def printable(text: str) -> str:
    """`text` without control characters and broken UTF-8: names from nodes must not drive a terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)


def printable_lines(text: str) -> str:
    """The same of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def steps_text(start: int | None, stop: int | None, phase: str | None) -> str:
    """`3:5`, `7`, `3:`, as in a request, with the phase after a slash."""
    if start is None:
        return "?"
    text = str(Window(start, stop))
    return f"{text}/{phase}" if phase else text


def _row(capture: CaptureResult, by_path: dict[str, Report]) -> tuple[str, ...]:
    report = by_path.get(capture.report or "")
    return (
        capture.worker,
        "-" if capture.rank is None else str(capture.rank),
        capture.host or "-",
        steps_text(capture.start, capture.stop, capture.phase),
        capture.backend,
        capture.state,
        size(report.size_bytes) if report else "-",
        capture.report or "-",
    )


def _stray(report: Report) -> tuple[str, ...]:
    return (
        report.worker or "?",
        "?" if report.rank is None else str(report.rank),
        report.host or report.node or "-",
        steps_text(report.start, report.stop, report.phase),
        report.backend or "?",
        "unplanned",
        size(report.size_bytes),
        report.path,
    )


def reasons(manifest: Manifest, limit: int = 20) -> list[str]:
    """Reasons of what is not ok, each once with how many captures it explains."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for capture in manifest.captures:
        if capture.state != "ok":
            by_reason.setdefault((capture.state, capture.reason), []).append(capture.id)
    lines = []
    for (state, reason), ids in list(by_reason.items())[:limit]:
        which = ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"
        lines.append(printable(f"{state}: {which}: {reason}"))
    if len(by_reason) > limit:
        lines.append(f"… and {len(by_reason) - limit} more reasons in manifest.json")
    warned = [report for report in manifest.reports if report.warning]
    lines += [printable(f"warning: {report.path}: {report.warning}") for report in warned[:limit]]
    return lines
