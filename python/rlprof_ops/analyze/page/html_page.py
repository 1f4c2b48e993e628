"""Renders the page: one HTML file with its style, its script and its data inside, and nothing fetched from
anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from rlprof_ops.analyze.answer_file import written
from rlprof_ops.analyze.page.data import page_data
from rlprof_ops.analyze.report_model import Answer

_HERE = Path(__file__).parent
_SCRIPTS = ("gantt.js", "whole_run.js", "rollout.js", "requests.js", "hang.js", "page.js")


def render(answer: Answer, timeline: Sequence[str] = (), served: bool = False) -> str:
    """The page of an answer. What comes from a run reaches it as JSON data only, and the script writes it
    as text. `timeline`: names of the timeline's files that lie beside the page. `served`: by `ReportServer`,
    which hands them to Perfetto.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    template = environment.from_string((_HERE / "page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        title=_title(answer.run),
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup("".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)),
        data=Markup(embedded(page_data(answer) | {"timeline": list(timeline), "served": served})),
    )


def handover(
    run: Mapping[str, object], timelines: Sequence[dict[str, str]], perfetto: str, nonce: str
) -> str:
    """The page that hands a timeline's files to Perfetto; its one script carries `nonce`."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string((_HERE / "handover.html.j2").read_text(encoding="utf-8")).render(
        title=_title(run),
        run=str(run.get("job") or run.get("path") or ""),
        files=timelines,
        perfetto=perfetto,
        nonce=nonce,
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
    )


def _title(run: Mapping[str, object]) -> str:
    return " ".join(filter(None, ("rlprof", str(run.get("job_name") or ""), str(run.get("job") or ""))))


def embedded(data: object) -> str:
    """JSON that can stand inside a script element: no "<" can end it, and the two line ends JavaScript
    minds are escaped.
    """
    text = written(data)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
