"""Names that tell the processes of a run apart: of hosts that no report tells, and pids where needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from msgspec.structs import replace

from rlprof_ops.analyze.run.identity import ReportFile


class HasHost(Protocol):
    """A summary, or a part of the timeline."""

    @property
    def host(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def report(self) -> ReportFile: ...


P = TypeVar("P", bound=HasHost)


def with_hosts(parts: Sequence[P], nodes: Sequence[str] = ()) -> list[P]:
    """The parts, each with a host. `nodes`: those of the run, where they are known.

    Where a run has one node, that is it. A single process needs no host. Else every process without one has
    a clock of its own until a collective aligns it, and shares it with those in the same report.
    """
    processes = {(p.host, p.report.worker, p.rank, p.pid) for p in parts}
    if len(nodes) == 1:
        return [p if p.host else replace(p, host=nodes[0]) for p in parts]  # type: ignore[type-var]
    if len(processes) < 2:
        return list(parts)
    names: dict[tuple[str, int, int], str] = {}
    of_report: dict[str, str] = {}
    found = []
    for part in parts:
        if part.host:
            found.append(part)
            continue
        process = (part.report.worker, part.rank, part.pid)
        known = (
            names.get(process)
            or of_report.get(part.report.path)
            or f"unknown host {len({*names.values()}) + 1}"
        )
        name = names[process] = of_report[part.report.path] = known
        found.append(replace(part, host=name))  # type: ignore[type-var]
    return found


def told_apart(parts: Sequence[P], *others: Sequence[HasHost]) -> list[P]:
    """The parts, marked where several processes of a host have the worker's name and the rank in common, be
    it among them or among `others`.
    """
    shared: set[tuple[str, int, str]] = set()
    groups: list[Sequence[HasHost]] = [parts, *others]
    for group in groups:
        pids: dict[tuple[str, int, str], set[int]] = {}
        for part in group:
            pids.setdefault((part.report.worker, part.rank, part.host), set()).add(part.pid)
        shared |= {name for name, found in pids.items() if len(found) > 1}
    return [
        replace(p, told_apart=True) if (p.report.worker, p.rank, p.host) in shared else p  # type: ignore[type-var]
        for p in parts
    ]
