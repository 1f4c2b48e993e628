"""docs/api.md: the Python names that users import, from their signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

# (heading, what it is for, module, names); a name with a dot is a method of a class.
SECTIONS = (
    (
        "In training code",
        "See [in the training process](runtime.md).",
        "rlprof_ops.runtime.profiler",
        ("from_env", "from_request", "annotate", "current", "runtime_env"),
    ),
    (
        "The profiler of a process",
        "What `from_env` returns where something is captured. Where nothing is, an object with the same"
        " methods does nothing.",
        "rlprof_ops.runtime.active_profiler",
        (
            "Profiler.step",
            "Profiler.start_step",
            "Profiler.stop_step",
            "Profiler.abort_step",
            "Profiler.range",
            "Profiler.annotate",
            "Profiler.metrics",
            "Profiler.close",
        ),
    ),
    (
        "Jobs from Python, with submitit",
        "See [through submitit](submitit.md).",
        "rlprof_ops",
        ("RayJob", "wait_for", "RunSummary", "HarvestRun", "ReportRun"),
    ),
    (
        "Requests",
        "See [the request](request.md). A wrong request raises `RequestError`, which names every problem.",
        "rlprof_ops.request",
        ("load_request", "request_from_dict", "ProfileRequest", "CaptureSpec", "Steps"),
    ),
    (
        "What a job left",
        "See [how reports come home](collect.md) and [reading the report](report.md).",
        "rlprof_ops.collect.harvest.manifest",
        ("Manifest.load", "Manifest", "CaptureResult", "Report"),
    ),
)


def api_page() -> str:
    """The whole page."""
    lines = [
        "# Python API",
        "",
        "The names that are meant to be imported. Everything else may change from one version to the next."
        " Made from the docstrings by `docs/generate.py`.",
    ]
    for heading, about, module, names in SECTIONS:
        lines += ["", f"## {heading}", "", about]
        for name in names:
            lines += ["", *entry(module, name)]
    return "\n".join(lines) + "\n"


def entry(module: str, name: str) -> Iterator[str]:
    """A name's heading, its signature, its docstring."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    method = "." in name
    yield f"### {name if method else f'{module}.{name}'}"
    yield ""
    yield "```python"
    yield signature(name, found)
    yield "```"
    yield ""
    yield from paragraphs(inspect.getdoc(found) or "")


def signature(name: str, found: Any) -> str:
    """As one types it, without the annotations' module names and without `self`."""
    try:
        shown = inspect.signature(found)
    except (TypeError, ValueError):
        return name
    parameters = [p for p in shown.parameters.values() if p.name not in ("self", "cls")]
    if any("Annotated[" in str(p.annotation) for p in parameters):  # the types, not what is said of them
        types = typing.get_type_hints(found)
        parameters = [p.replace(annotation=types[p.name]) for p in parameters]
    text = str(shown.replace(parameters=parameters))
    text = re.sub(r"\b(?:typing|collections\.abc|pathlib|rlprof_ops[\w.]*|os)\.(?=[A-Z])", "", text)
    return name + text.replace("'", "").replace(" -> None", "")


def paragraphs(text: str) -> Iterator[str]:
    """A docstring as Markdown: sections such as `Args:` become lists."""
    item = re.compile(r"    (\w+): (.*)")
    inside = False
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Attributes|Raises|Returns|Yields):", line):
            inside = True
            yield from ("", f"**{line.rstrip(':')}**", "")
        elif inside and (match := item.fullmatch(line)):
            yield f"- `{match[1]}`: {escaped(match[2])}"
        elif inside and line.startswith("    "):
            yield f"  {escaped(line.strip())}"
        else:
            inside = inside and not line
            yield escaped(line.strip())


def escaped(text: str) -> str:
    """Angle brackets and stars as they are, outside of code."""
    parts = text.split("`")
    plain = (
        part.replace("<", "&lt;").replace("*", r"\*") if i % 2 == 0 else part for i, part in enumerate(parts)
    )
    return "`".join(plain)
