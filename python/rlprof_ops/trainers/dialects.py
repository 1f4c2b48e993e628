"""What every trainer's dialect has in common: its words for workers and phases, what it renders, what it
reads back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from rlprof_ops.request import CaptureSpec, ProfileRequest
from rlprof_ops.request.problems import nearest, words


@dataclass(frozen=True)
class WorkerKind:
    """A kind of worker of a trainer.

    Attributes:
        name: what the trainer calls it; what patterns match.
        aliases: our trainer-neutral names (`policy_worker`, …), tried when a pattern matches no name.
        phases: which phases it runs, for `each: phase`.
        note: what to know before profiling it.
    """

    name: str
    aliases: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Rendered:
    """A request in a trainer's words. `losses` are what the trainer cannot do, `notes` what to know."""

    text: str
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Imported:
    """A trainer's configuration as a request; `notes` say where its meaning had to be decided.

    `found` is false when no key of the trainer's profiling stands in what was read.
    """

    request: ProfileRequest
    notes: tuple[str, ...] = ()
    found: bool = True


@dataclass(frozen=True)
class Framework:
    """One trainer's dialect. `formats[0]` is the default of `render`."""

    name: str
    title: str
    formats: tuple[str, ...]
    workers: tuple[WorkerKind, ...]
    phase_names: Mapping[str, tuple[str, ...]]
    render: Callable[[ProfileRequest, str], Rendered]
    import_: Callable[[str, str], Imported]
    world: Callable[[Mapping[str, Any], int | None], dict[str, int]]

    def phases(self, worker: str) -> tuple[str, ...]:
        """The phases a worker runs; () when it is none of ours."""
        return next((w.phases for w in self.workers if w.name == worker), ())


@dataclass
class Remarks:
    """Collects what a rendering loses and what a reader should know, each once."""

    losses: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lose(self, text: str) -> None:
        if text not in self.losses:
            self.losses.append(text)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def header(self, title: str) -> str:
        """Comment lines that stand above the rendered text."""
        lines = [
            f"# {title}, from an rlprof request",
            *(f"# lost: {t}" for t in self.losses),
            *(f"# note: {t}" for t in self.notes),
        ]
        return "\n".join(" ".join(line.split()) for line in lines) + "\n"

    def rendered(self, title: str, body: str) -> Rendered:
        return Rendered(self.header(title) + body, tuple(self.losses), tuple(self.notes))


def select(
    patterns: Iterable[str], workers: Sequence[WorkerKind], trainer: str, remarks: Remarks
) -> tuple[str, ...]:
    """The trainer's worker names that patterns mean, in the trainer's order; a pattern without any is a
    loss.
    """
    found: set[str] = set()
    for pattern in patterns:
        names = [w.name for w in workers if fnmatchcase(w.name, pattern)]
        if not names:
            names = [w.name for w in workers if any(fnmatchcase(alias, pattern) for alias in w.aliases)]
            if names:
                remarks.note(f"{pattern!r} is {words(names)} in {trainer}")
        if not names:
            near = nearest(pattern.strip("*"), [w.name for w in workers])
            remarks.lose(
                f"workers {pattern!r} matches no worker of {trainer}; it has"
                f" {words(w.name for w in workers)}.{near}"
            )
        found.update(names)
    return tuple(w.name for w in workers if w.name in found)


def usable(request: ProfileRequest, remarks: Remarks) -> list[tuple[int, CaptureSpec]]:
    """Captures with their numbers from 1, without those that select no worker or rank."""
    kept = []
    for number, spec in enumerate(request.captures, 1):
        if spec.ranks == () or not spec.workers:
            remarks.note(f"capture {number} selects no rank and is left out")
        else:
            kept.append((number, spec))
    return kept


def common_losses(number: int, spec: CaptureSpec, trainer: str, remarks: Remarks, env: bool = False) -> None:
    """What no trainer but ours has: `on_error: fail`, and mostly `env` for profiled workers only."""
    if spec.on_error == "fail":
        remarks.lose(f"capture {number}: on_error: fail; {trainer} has no such choice")
    if spec.part is not None:
        remarks.lose(f"capture {number}: at {spec.part}; {trainer} profiles whole steps")
    if spec.env and not env:
        remarks.lose(
            f"capture {number}: env {', '.join(spec.env)}; {trainer} cannot set variables for profiled"
            " workers only"
        )
