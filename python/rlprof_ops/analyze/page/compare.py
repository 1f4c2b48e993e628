"""Two runs side by side on one page: the mean step of every worker on one scale, and what changed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from importlib.resources import files
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from rlprof_ops.analyze.output.run_diff import Change, compare, describe, signed_percent
from rlprof_ops.analyze.output.text import duration
from rlprof_ops.analyze.page.data import WorkerRow, worker_rows
from rlprof_ops.analyze.report_model import Answer

# told apart by most eyes, with white letters on them
_COLORS = ("#2f6fa8", "#b0623a", "#4d7d50", "#8458a8", "#a8456f", "#5d6b2f", "#2f7f7a", "#7a5a3a")
MAX_ROWS = 200


def render_comparison(before: Answer, after: Answer, names: tuple[str, str]) -> str:
    """The page of two answers. `names`: what to call the runs. Opens offline and runs no script."""
    difference = compare(before, after)
    here = files(__package__)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((here / "compare.html.j2").read_text(encoding="utf-8"))
    tables = [("Phases", difference.phases), ("Kernels that changed by 5 % or more", difference.kernels)]
    tables.append(("Operators by what they are inside of, 5 % or more", difference.paths))
    stragglers = [f"new: {name}" for name in difference.stragglers_new]
    return template.render(
        title=f"{names[0]} → {names[1]}",
        headline=describe(difference.step),
        notes=difference.notes,
        lanes=_lanes((before, after), names),
        tables=[
            {"title": title, "rows": _rows(rows), "csv": _csv(rows), "file": _file_name(title)}
            for title, rows in tables
            if rows
        ],
        stragglers=[*stragglers, *(f"no longer: {name}" for name in difference.stragglers_gone)],
        style=Markup((here / "page.css").read_text(encoding="utf-8")),
    )


def _lanes(answers: tuple[Answer, Answer], names: tuple[str, str]) -> list[list[dict[str, object]]]:
    """A row a worker, before and after beside each other."""
    found = [{row.worker: row for row in worker_rows(answer)} for answer in answers]
    phases = list(dict.fromkeys(phase for answer in answers for phase in answer.phase_names))
    longest = max((row.mean_ns for rows in found for row in rows.values()), default=1) or 1
    return [
        [
            _lane(answer, rows.get(worker), worker, name, phases, longest)
            for answer, rows, name in zip(answers, found, names, strict=True)
        ]
        for worker in dict.fromkeys([*found[0], *found[1]])
    ]


def _lane(
    answer: Answer, row: WorkerRow | None, worker: str, name: str, phases: Sequence[str], longest: int
) -> dict[str, object]:
    if row is None:
        return {"run": name, "worker": worker, "length": "", "width": 0, "parts": []}
    parts = [
        {
            "phase": answer.phase_names[phase],
            "title": f"{answer.phase_names[phase]}: {duration(length)}",
            "width": round(100 * length / max(row.mean_ns, 1), 3),
            "color": _COLORS[phases.index(answer.phase_names[phase]) % len(_COLORS)],
        }
        for phase, length in row.phases
    ]
    width = round(100 * row.mean_ns / longest, 3)
    return {"run": name, "worker": worker, "length": duration(row.mean_ns), "width": width, "parts": parts}


def _csv(changes: Sequence[Change]) -> str:
    """All rows with plain numbers, as an address that a browser saves: the page runs no script."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\r\n")
    writer.writerow(["worker/phase", "before (ns)", "after (ns)", "change", "noise (ns)", "so"])
    for change in changes:
        numbers = (change.before_ns, change.after_ns, change.share, change.noise_ns)
        writer.writerow([_cell(change.what), *("" if n is None else n for n in numbers), change.verdict])
    return "data:text/csv;charset=utf-8," + quote(table.getvalue(), safe="")


def _cell(text: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _file_name(title: str) -> str:
    return f"rlprof-diff-{re.sub('[^a-z0-9]+', '-', title.lower()).strip('-')}.csv"


def _rows(changes: Sequence[Change]) -> list[dict[str, str]]:
    return [
        {
            "what": change.what,
            "before": "–" if change.before_ns is None else duration(change.before_ns),
            "after": "–" if change.after_ns is None else duration(change.after_ns),
            "share": "–" if change.share is None else signed_percent(change.share),
            "noise": "?" if change.noise_ns is None else f"±{duration(change.noise_ns)}",
            "verdict": change.verdict,
        }
        for change in changes[:MAX_ROWS]
    ]
