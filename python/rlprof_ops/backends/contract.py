"""What a backend is: the way one kind of capture is checked, wrapped, recorded, named and read back.

A backend is a folder here, or a package of somebody else's that the entry point group `rlprof_ops.backends`
names; its object is `BACKEND`. What takes time or another package to load is loaded by the method that needs
it: a training container has the standard library and PyYAML alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from rlprof_ops import env_names

if TYPE_CHECKING:
    from pathlib import Path

    from rlprof_ops.backends.wrapping import RayPlugin, Wrap

OK = "ok"
EMPTY = "empty"
TRUNCATED = "truncated"
# What the process that leads the steps is called, by us and by trainers' documents: either selects it.
LEADERS = ("driver", "controller")


class CaptureError(Exception):
    """A capture could not be taken; the text is the reason that the manifest will show."""


class Yielded(CaptureError):
    """Ours did not open, since something of the program's own was first; the window's next step may try."""


@dataclass(frozen=True)
class Check:
    """What a look into one report found. `state` is ok, empty or truncated; `reason` is "" when ok."""

    state: str
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Where:
    """Where a capture is to be taken, as far as the caller knows it.

    Attributes:
        gpu: whether the workers' machines have one; None when unknown, and then nothing is said about it.
        trainer: the trainer whose own profiler takes the capture; "" for ours.
        driver: who opens its windows, a name of `window_support`; "" when unknown.
    """

    gpu: bool | None = None
    trainer: str = ""
    driver: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a backend says about one capture: why it cannot be taken, and what has no effect in it."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Options(Protocol):
    """The part of a `CaptureSpec` that is the profiler's own."""

    @property
    def options(self) -> Mapping[str, str]: ...

    @property
    def flags(self) -> Sequence[str]: ...


class Asked(Options, Protocol):
    """The part of a `CaptureSpec` that decides whether a backend can take it."""

    @property
    def is_on(self) -> bool: ...

    @property
    def each(self) -> str: ...

    @property
    def part(self) -> SpecPart | None: ...

    def windows(self) -> Sequence[Any]: ...


class SpecPart(Protocol):
    """The part of each step that a window holds, as far as a backend asks; `counts`: requests of engines."""

    @property
    def counts(self) -> bool: ...


class Spec(Asked, Protocol):
    """A `CaptureSpec` (rlprof_ops.request), as backends see it."""

    @property
    def backend(self) -> str: ...

    @property
    def ranks(self) -> Sequence[int] | None: ...

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def on_error(self) -> str: ...

    @property
    def when(self) -> object: ...


class Stopping(Protocol):
    """A recording that has ended and whose report is still being written, beside the training."""

    def wait(self) -> Path:
        """The finished file. Raises `CaptureError`. Called once, in whatever thread."""


class WindowRecorder(Protocol):
    """One backend in this process. `open` and `close` raise `CaptureError`.

    It may have: `prepare(step)`, called on the thread that trains before a window inside that step;
    `lead_s`, how long before its recording begins `open` is called, for such a window; `collects_s`, since
    when the open window holds something, by the monotonic clock; `stopped_s`, until when the last one did;
    `halt()`, its recording ends, though `close` has to wait for another window's;
    `late`, its files come when the process ends; `most_bytes` (0: any number) and `size_bytes()`, with how
    many any thread closes its open window and how many that holds, as measured or, as `size_by` says, by
    how one before grew;
    `extra`, more files of the window as (first, last step, file); `cut_short`, why its recording ended
    before `close`, after `steps`; `scratch`, the folders that its tool writes to before there is a report:
    any thread closes its open window when they are short of room, as where `size_bytes()` would not fit.
    """

    suffix: str

    def open(self, target: Path) -> None:
        """Begin to record; `target` is where `close` leaves the finished file, in the TMPDIR of the job."""

    def entered(self, step: int) -> None:
        """A step of the open window begins."""

    def close(self) -> Path | Stopping:
        """End the recording: the finished file, or what is still to be waited for before there is one."""


class Backend:
    """A way to take a capture. What a method has to do for most backends stands here.

    Attributes:
        name: as a request has it.
        title: as messages have it.
        aliases: what else people call it, for the answer to a wrong name.
        suffixes: how its reports end, the first being the one that our own runtime writes.
        telling: those of `suffixes` that nothing else writes: such a file is a report wherever it lies.
        summary: one line for the table of backends in the documentation.
        ranges: how phases get into its reports: "nvtx", "record_function", or "" for not at all.
        bytes_per_rank_step: of a report, a rule of thumb for the estimate of disk space.
        on_demand: whether `rlprof capture` may ask for it in a running process.
        one_report: its tool writes one report when the process ends, with all windows in it.
        parts_of_steps: its windows may open and close inside a step, on another thread than the training's.
        parts_at_ranges: so may they, but on the thread that trains alone, where a range begins or ends.
        window_options: those of `window_support.OPTIONS` that it has.
        timed_options: what it has to have where it is started and stopped beside the training thread.
        ray_key: of Ray's own plugin of this profiler in a runtime env, as Ray stores it; "" without one.
        ray_words: what the value of that key calls a capture's `options` and `env`; empty where it holds
            options alone.
        secret_files: patterns of names, of files beside its reports that hold the process's environment: they
            stay on the node.
        masked: of `suffixes` and `derived`, those whose files hold environments of processes, and stay
            readable when the secrets in them are overwritten: they leave the node without these.
        derived: how files end that its tool makes of its reports.
        records_cuda: it records CUDA through CUPTI, and is refused where another one `holds_cupti`.
        windows_from_outside: a supervisor opens its windows too, in a process that knows no step.
        wrap: `module:object` of the `Wrap` that a process is started with; "" where it needs none.
        ray_plugin: `module:object` of the `RayPlugin` that stands for Ray's own plugin; "" without one.
        reader: `module:function` that reads a report into columns, "" where none does; it is given the path
            and the seconds that a tool may take for it.
        doctor: `module:function` that yields the findings of `rlprof doctor` on one node, "" for none; it is
            given whether to be quick.
    """

    name: str
    title: str = ""
    aliases: tuple[str, ...] = ()
    suffixes: tuple[str, ...]
    telling: tuple[str, ...] = ()
    summary: str = ""
    ranges: str = ""
    bytes_per_rank_step: int = 100 << 20
    on_demand: bool = True
    one_report: bool = False
    parts_of_steps: bool = False
    parts_at_ranges: bool = False
    window_options: tuple[str, ...] = ()
    timed_options: Mapping[str, str] = {}
    ray_key: str = ""
    ray_words: Mapping[str, str] = {}
    secret_files: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    records_cuda: bool = False
    windows_from_outside: bool = False
    wrap: str = ""
    ray_plugin: str = ""
    reader: str = ""
    doctor: str = ""

    def check(self, path: Path) -> Check:
        """Read as little of a report as tells whether it is whole; never raises for a bad file."""
        return check_not_empty(path) or Check(OK, details={"size_bytes": path.stat().st_size})

    def validate(self, spec: Asked, where: Where) -> Verdict:
        """The one verdict on a capture."""
        return Verdict()

    def why_unreadable(self, original: Path, masked: Path) -> str:
        """Why the copy of a report, of which secrets were overwritten, is none; "" when it is as good."""
        found = self.check(masked)
        return found.reason if found.state != self.check(original).state else ""

    def answers_here(self) -> bool:
        """Whether this process was started so that this backend can record in it: a capture on demand that
        names none may be taken with it.
        """
        return False

    def opened_by_others(self) -> bool:
        """Whether windows of steps of this process are opened from outside, or by its trainer, where it uses
        no runtime of ours.
        """
        return False

    def holds_cupti(self, spec: Options) -> str:
        """Why no other profiler of a process that was started for this capture can record CUDA: CUPTI serves
        one of a process. "" where it leaves CUPTI to others.
        """
        return ""

    def output_folder(self, worker: str, rank: int) -> str:
        """Where a report lies below the request's `output_dir`; `worker` is safe in a path."""
        return f"{self.name}/{worker}/rank{rank}"

    def recorder(self, spec: Spec, beside: Sequence[Spec]) -> tuple[WindowRecorder | None, str]:
        """Who takes `spec` in this process, or None and the reason why nobody can. `beside`: all captures of
        the process, which may exclude each other.
        """
        return None, f"the backend {self.name!r} cannot be taken inside a training process"


def not_wrapped(by: str) -> str:
    """Why a process that had to be started by a profiler is not: what its start said, else where to look."""
    return os.environ.get(env_names.NOT_WRAPPED) or (
        f"this process was not started by {by}: the runtime-env plugin was not loaded on this node, or the"
        " actor was created without profiler.runtime_env(...) in its runtime_env"
    )


def load(reference: str) -> Any:
    """The object of a `module:object` reference."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def wrap_of(backend: Backend) -> Wrap | None:
    """How a process is started under this backend; None where it needs nothing."""
    return load(backend.wrap) if backend.wrap else None


def ray_plugin_of(backend: Backend) -> RayPlugin | None:
    """What stands for Ray's own plugin of this profiler; None where Ray has none."""
    return load(backend.ray_plugin) if backend.ray_plugin else None


def check_not_empty(path: Path) -> Check | None:
    """The part that all backends share: a `Check` when the file is missing or has no byte, else None."""
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        return Check(TRUNCATED, f"cannot be read: {error.strerror or error}")
    if size_bytes == 0:
        return Check(EMPTY, "the file has no content", {"size_bytes": 0})
    return None
