"""A comparison of two runs in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from rlprof_ops.analyze.output.run_diff import Change, Diff, describe, resolution, signed_percent
from rlprof_ops.analyze.output.terminal import count_rest, literal, standard_output
from rlprof_ops.analyze.output.text import duration

MAX_ROWS = 20
_END = {
    "slower": ".",
    "faster": ".",
    "noise": ": within the noise.",
    "one step": ": with a single step this cannot be told from chance.",
    "new": ": the other run has no step.",
    "gone": ": the other run has no step.",
    "in neither": ".",
}


def show(diff: Diff, before: str, after: str, console: Console | None = None) -> None:
    console = console or standard_output()
    console.print(f"{literal(before)} → {literal(after)}", highlight=False)
    console.print(
        f"[bold]A step {literal(describe(diff.step))}[/]{_END[diff.step.verdict]}",
        highlight=False,
    )
    if sure := resolution(diff.step):
        console.print(literal(sure), highlight=False)
    for note in diff.notes:
        console.print(f"[yellow]{literal(note)}[/]", highlight=False)
    if diff.phases:
        console.print(_table("Phases", diff.phases, with_noise=True))
    if diff.whole_run:
        console.print(_table("The whole run, every step of it", diff.whole_run, with_noise=True))
    if diff.kernels:
        console.print(
            _table(
                "Kernels that changed by 5 % or more (a rank and step; noise not known)",
                diff.kernels,
                with_noise=False,
            )
        )
    if diff.paths:
        title = (
            "Operators by what they are inside of, 5 % or more (host time, a rank and step; noise not known)"
        )
        console.print(_table(title, diff.paths, with_noise=False))
    for label, names in (
        ("New straggler", diff.stragglers_new),
        ("No longer a straggler", diff.stragglers_gone),
    ):
        for name in names:
            console.print(f"{label}: {literal(name)}", highlight=False)
    if any(diff.missing):
        console.print(
            "Missing or unread reports: {} before, {} after.".format(*diff.missing),
            highlight=False,
        )


def _table(title: str, changes: tuple[Change, ...], with_noise: bool) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("worker/phase", overflow="fold")
    for name in (
        "before",
        "after",
        "change",
        *(("noise", "10 % found", "", "more steps") if with_noise else ()),
    ):
        table.add_column(name, justify="right")
    for c in changes[:MAX_ROWS]:
        share = "-" if c.share is None else signed_percent(c.share)
        cells = [_or_dash(c.before_ns), _or_dash(c.after_ns), share]
        if with_noise:
            color = {"slower": "red", "faster": "green", "new": "yellow", "gone": "yellow"}
            verdict = f"[{color.get(c.verdict, 'dim')}]{c.verdict}[/]"
            cells += ["?" if c.noise_ns is None else f"±{duration(c.noise_ns)}"]
            cells += ["?" if c.power is None else f"{100 * c.power:.0f} %", verdict, _more(c)]
        table.add_row(literal(c.what), *cells)
    count_rest(table, len(changes) - MAX_ROWS)
    return table


def _or_dash(ns: int | None) -> str:
    return "-" if ns is None else duration(ns)


def _more(change: Change) -> str:
    """How many more steps would tell a change that may be one."""
    return "" if change.more_steps is None else f"{change.more_steps:,}"
