"""The report as GitHub Markdown, short enough to paste into an issue: findings, causes, tables, versions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from rlprof_ops.analyze.output import terminal
from rlprof_ops.analyze.output.rollout_lines import mfu_lines, rollout_lines
from rlprof_ops.analyze.output.text import duration, unmarked
from rlprof_ops.analyze.report_model import Answer
from rlprof_ops.collect.harvest.manifest_table import printable
from rlprof_ops.redact import redact_text
from rlprof_ops.version import __version__

_SPECIAL = re.compile(r"([\\`*\[\]<>|])")
WIDEST_NAME = 60


def markdown(answer: Answer) -> str:
    """What the terminal shows, without the run's place on the storage. What looks like a secret is masked."""
    return redact_text("\n".join(_lines(answer)) + "\n")


def _lines(answer: Answer) -> Iterator[str]:
    yield f"## {plain(terminal.title(answer) or 'run')}"
    yield ""
    yield plain(terminal.coverage_line(answer))
    yield from (f"\n**{plain(sentence)}**" for sentence in unmarked(answer.steps))
    yield "\n### Findings\n"
    for number, finding in enumerate(answer.findings, 1):
        saves = f" *Saves {duration(finding.saves_ns)} a step.*" if finding.saves_ns else ""
        yield f"{number}. {plain(finding.text)}{saves} (`{finding.kind}`)"
        if finding.advice:
            yield f"   {plain(finding.advice)}"
    if not answer.findings:
        yield "No finding is large enough for a sentence."
    yield from _list("Length of a step", terminal.path_lines(answer.critical_path, _labels(answer)))
    yield from _list("What if", terminal.what_if_lines(answer.what_if))
    yield from _list("Generation", rollout_lines(answer))
    for table in terminal.tables(answer, WIDEST_NAME + 54):
        yield from _table(table)
    yield from _list("Utilisation", mfu_lines(answer.mfu))
    missing = [f"{lost.capture}: {lost.state}, {lost.reason}" for lost in answer.coverage.missing]
    unread = [f"{bad.path}: {bad.reason}" for bad in answer.coverage.unread]
    yield from _list("Not in this report", terminal.first([*missing, *unread], terminal.MAX_ROWS))
    versions = answer.run.get("versions")
    told = dict(versions) if isinstance(versions, dict) else {}
    told["rlprof_ops"] = __version__
    if framework := answer.run.get("framework"):
        told["framework"] = framework
    yield from _list("Versions", [f"{name} {version}" for name, version in told.items()])


def _labels(answer: Answer) -> list[str]:
    return [rank.label for rank in answer.ranks]


def _list(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"\n### {title}\n"
        yield from (f"- {plain(line)}" for line in lines)


def _table(table: Table) -> Iterator[str]:
    yield f"\n### {plain(str(table.title))}\n"
    rows = list(zip(*(map(_cell, column.cells) for column in table.columns), strict=True))
    yield f"| {' | '.join(_cell(column.header) for column in table.columns)} |"
    yield f"|{'|'.join('---:' if column.justify == 'right' else '---' for column in table.columns)}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _cell(content: object) -> str:
    text = Text.from_markup(str(content)).plain
    return plain(text if len(text) <= WIDEST_NAME else text[: WIDEST_NAME - 1] + "…")


def plain(text: str) -> str:
    """One line that Markdown shows as it is: names come from traces."""
    return _SPECIAL.sub(r"\\\1", printable(" ".join(text.split())))
