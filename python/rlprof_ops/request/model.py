"""What was asked, checked once: `ProfileRequest` holds `CaptureSpec`s; `Capture` is one planned report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rlprof_ops import backends
from rlprof_ops.request.selectors import first_match
from rlprof_ops.request.step_part import StepPart
from rlprof_ops.request.steps import Steps, Window
from rlprof_ops.request.steps_from import StepsFrom
from rlprof_ops.request.when import When

EACH = ("step", "phase")
ON_ERROR = ("continue", "fail")
PHASES = ("generation", "reward", "ref_logprob", "logprob", "advantage", "train", "weight_sync")
OFF = Steps()
ANY_PHASE = "*"  # in a plan: one report for every phase that the worker runs


@dataclass(frozen=True)
class CaptureSpec:
    """One entry of `captures`.

    Attributes:
        workers: `fnmatch` patterns of worker names; the first that matches is the one reported.
        ranks: None for all, () for none.
        steps: falsy when off.
        each: "step" (one report per window) or "phase" (one report per phase inside each step).
        options, flags: of the backend's tool, by name without dashes; both decided by the user, not defaults.
        env: extra environment of the profiled worker, where it is started for the capture.
        when: what opens it beside its steps, once it is found in the running job.
        part: of each of its steps, what a window holds; None for whole steps.
        on_error: of a worker that cannot be started under its profiler: "continue" starts it without, "fail"
            does not start it. A window that fails ends nothing.
        origins: field -> where its value was written; for messages, not part of the request's identity.
    """

    backend: str = backends.DEFAULT
    workers: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None
    steps: Steps = OFF
    each: str = "step"
    options: dict[str, str] = field(default_factory=dict, hash=False)
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict, hash=False)
    on_error: str = "continue"
    when: When | None = None
    part: StepPart | None = None
    origins: dict[str, str] = field(default_factory=dict, compare=False, repr=False, hash=False)

    @property
    def is_on(self) -> bool:
        """Whether anything can come of it: some step, some worker, some rank."""
        return bool(self.steps) and bool(self.workers) and self.ranks != ()

    @property
    def waits(self) -> bool:
        """Whether it opens when something is found, for some worker and some rank."""
        return self.when is not None and bool(self.workers) and self.ranks != ()

    def matches(self, worker: str, rank: int | None = None) -> bool:
        """Whether this worker is selected; rank None asks for the worker alone, whatever its ranks."""
        if first_match(worker, self.workers) is None:
            return False
        if rank is None:
            return self.ranks != ()
        return self.ranks is None or rank in self.ranks

    def windows(self, last: int | None = None) -> tuple[Window, ...]:
        """The windows that end in a report (or, in phase mode, in one report per phase)."""
        return self.steps.windows(last, each_step=self.each == "phase" or self.part is not None)

    def origin(self, name: str) -> str:
        """Where the value of a field came from; the capture's own place when the field was not written."""
        return self.origins.get(name) or self.origins.get("", "")

    def to_dict(self) -> dict[str, Any]:
        """As the YAML has it; fields at their default are left out."""
        data: dict[str, Any] = {"backend": self.backend, "workers": list(self.workers)}
        if self.ranks is not None:
            data["ranks"] = list(self.ranks)
        data["steps"] = str(self.steps) or None
        if self.each != "step":
            data["each"] = self.each
        if self.part is not None:
            data.update(self.part.to_dict())
        for name, value in (
            ("options", dict(self.options)),
            ("flags", list(self.flags)),
            ("env", dict(self.env)),
        ):
            if value:
                data[name] = value
        if self.on_error != "continue":
            data["on_error"] = self.on_error
        if self.when is not None:
            data["when"] = self.when.to_dict()
        return data


@dataclass(frozen=True)
class ProfileRequest:
    """What a person asks: YAML, environment and flags all end as one of these.

    False when nothing is asked. `output_dir`: one folder for all reports, or one for each backend that has
    one. `steps_from`: by which lines of the driver's output steps are known, where no process tells them.
    `notes` are remarks of the loader for the person (a variable that was overruled, an option that is
    ignored).
    """

    captures: tuple[CaptureSpec, ...] = ()
    enabled: bool = True
    output_dir: str | dict[str, str] | None = field(default=None, hash=False)
    steps_from: StepsFrom | None = None
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __bool__(self) -> bool:
        return self.enabled and any(spec.is_on or spec.waits for spec in self.captures)

    def folder(self, backend: str) -> str | None:
        """Where copies of a backend's reports go; None for nowhere but the run folder."""
        return self.output_dir.get(backend) if isinstance(self.output_dir, dict) else self.output_dir

    def in_folder(self, cwd: str) -> ProfileRequest:
        """The same request with folders that counted from `cwd`."""
        if self.output_dir is None:
            return self
        if isinstance(self.output_dir, str):
            return replace(self, output_dir=os.path.join(cwd, self.output_dir))
        return replace(self, output_dir={n: os.path.join(cwd, path) for n, path in self.output_dir.items()})

    def to_json(self) -> str:
        """One line, what `RLPROF_REQUEST_JSON` carries."""
        import json

        return json.dumps(self.to_dict(), sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"captures": [spec.to_dict() for spec in self.captures]}
        if not self.enabled:
            data["enabled"] = False
        if self.output_dir is not None:
            data["output_dir"] = self.output_dir
        if self.steps_from is not None:
            data["steps_from"] = self.steps_from.to_dict()
        return data

    def for_worker(self, worker: str, rank: int | None = None) -> tuple[CaptureSpec, ...]:
        """The captures that this process takes, in the request's order.

        Where two of one backend ask for the same step of one process, the first one wins and the later one
        keeps its other steps; a later one in the other `each` mode is left out, since one process cannot mix
        them.
        """
        if not self.enabled:
            return ()
        mine = [spec for spec in self.captures if (spec.is_on or spec.waits) and spec.matches(worker, rank)]
        return tuple(
            spec if left == spec.steps else replace(spec, steps=left) for spec, left in share_steps(mine)
        )


def share_steps(specs: Sequence[CaptureSpec]) -> list[tuple[CaptureSpec, Steps]]:
    """Which steps each of one process's captures takes: the first of a backend wins, and its `each` counts
    for all.
    """
    taken: dict[str, Steps] = {}
    mode: dict[str, str] = {}
    found = []
    for spec in specs:
        if mode.setdefault(spec.backend, spec.each) != spec.each:
            continue
        before = taken.get(spec.backend)
        left = spec.steps.minus(before) if before else spec.steps
        taken[spec.backend] = Steps.of((before.runs if before else ()) + left.runs)
        if left or spec.when is not None:
            found.append((spec, left))
    return found


class Capture(NamedTuple):
    """One window x one worker x one rank x one backend; it must end in one report.

    `phase` None: the whole window; `ANY_PHASE`: one report for each phase that the worker runs inside the
    step. A named tuple, since a plan can hold a hundred thousand.
    """

    backend: str
    worker: str
    rank: int | None
    window: Window
    phase: str | None = None

    @property
    def id(self) -> str:
        """`nsight/policy_worker/rank0/step3-4[/phase]`; rank `*` when the ranks are not known."""
        rank = "*" if self.rank is None else self.rank
        base = f"{self.backend}/{self.worker}/rank{rank}/{self.window.label}"
        return f"{base}/{self.phase}" if self.phase else base
