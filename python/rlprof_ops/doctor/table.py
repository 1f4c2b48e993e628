"""The findings as a table for a terminal: equal ones of several nodes in one line, what is wrong with its
fix below it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlprof_ops.doctor.finding import FAIL, OK, WARN, Finding


def merged(findings: Iterable[Finding]) -> list[tuple[Finding, tuple[str, ...]]]:
    """Each different finding once, in order, with its places."""
    places: dict[tuple[str, str, str, str, bool], list[str]] = {}
    for found in findings:
        key = (found.check, found.state, found.said, found.fix, found.place == "login")
        places.setdefault(key, []).append(found.place)
    return [(Finding(*key[:4], place=where[0]), tuple(where)) for key, where in places.items()]


def render(findings: list[Finding]) -> str:
    """Plain text, one line a finding, an arrow before each fix; the last line counts."""
    rows = merged(findings)
    names = [
        ", ".join(where) if len(where) <= 3 else f"{where[0]} and {len(where) - 1} more" for _, where in rows
    ]
    width = max((len(name) for name in names), default=0)
    check = max((len(found.check) for found, _ in rows), default=0)
    lines = []
    for name, (found, _) in zip(names, rows, strict=True):
        lines.append(f"{found.state:<4}  {name:<{width}}  {found.check:<{check}}  {found.said}")
        if found.fix:
            lines.append(f"{'':<4}  {'':<{width}}  {'':<{check}}  -> {found.fix}")
    counts = {state: sum(found.state == state for found in findings) for state in (OK, WARN, FAIL)}
    return "\n".join(
        [*lines, "", f"{counts[OK]} ok, {counts[WARN]} to look at, {counts[FAIL]} that a job would fail on"]
    )
