"""The findings as a table for a terminal: equal ones of several nodes in one line, what is wrong with its
fix below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rlprof_ops.check_result import FAIL, OK, WARN, CheckResult

_ORDER = (FAIL, WARN, OK)


def merged(findings: Iterable[CheckResult]) -> list[tuple[CheckResult, tuple[str, ...]]]:
    """Each different finding once, in order, with its places."""
    places: dict[tuple[str, str, str, str, bool], list[str]] = {}
    for found in findings:
        key = (found.check, found.state, found.said, found.fix, found.place == "login")
        places.setdefault(key, []).append(found.place)
    return [(CheckResult(*key[:4], place=where[0]), tuple(where)) for key, where in places.items()]


def render(
    findings: list[CheckResult],
    *,
    problems_only: bool = False,
    paint: Callable[[str, str], str] = lambda text, state: text,
) -> str:
    """One line a finding, what a job would fail on first, an arrow before each fix; the last line counts.

    `paint(text, state)` colours the word of a state.
    """
    rows = sorted(merged(findings), key=lambda row: _ORDER.index(row[0].state))
    if problems_only:
        rows = [row for row in rows if row[0].state != OK]
    names = [
        ", ".join(where) if len(where) <= 3 else f"{where[0]} and {len(where) - 1} more" for _, where in rows
    ]
    width = max((len(name) for name in names), default=0)
    check = max((len(found.check) for found, _ in rows), default=0)
    lines = []
    for name, (found, _) in zip(names, rows, strict=True):
        state = paint(f"{found.state:<4}", found.state)
        lines.append(f"{state}  {name:<{width}}  {found.check:<{check}}  {found.said}")
        if found.fix:
            lines.append(f"{'':<4}  {'':<{width}}  {'':<{check}}  -> {found.fix}")
    counts = {state: sum(found.state == state for found in findings) for state in (OK, WARN, FAIL)}
    said = f"{counts[OK]} ok, {counts[WARN]} to look at, {counts[FAIL]} that a job would fail on"
    return "\n".join([*lines, *([""] if lines else []), said])
