"""RLinf's `PyTorchProfiler` and `PyTorchProfilerFunc`: torch.profiler around single calls such as
`run_forward_backward`.

Parameters, functions and meaning are those of RLinf's document "Use PyTorch Profiler in Megatron when
inference and training" (rlinf/utils/profiler.py). Different from its code: every active call is saved (there
only the last of a cycle), both exports work at once, inference too ends after `schedule_repeat` calls, an
exception inside a profiled call does not block the next one, and names hold rank and call number, so nothing
is overwritten.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import Any

from rlprof_ops.backends import report_names
from rlprof_ops.backends.torch.torch_recorder import TorchProfile
from rlprof_ops.host.threads.time_limits import time_limits_wait
from rlprof_ops.runtime.compat.rlinf_profiler_config import PyTorchProfilerConfig, checked
from rlprof_ops.runtime.process.event_log import log_once

FORWARD, FORWARD_BACKWARD = "fwd", "fwd_bwd"


class PyTorchProfiler:
    """Profiles selected calls: `start(forward_only)` before one, `stop(forward_only)` after it, or `with
    prof.call(forward_only):`.

    Training calls follow the cycle wait, warmup, active, repeated `schedule_repeat` times; `wait` is what the
    minibatches of one training step leave over. Inference calls are cycles of their own: wait 0, warmup 0,
    active 1. Results: `<output_dir>/fwd/` and `<output_dir>/fwd_bwd/`. A profiler that fails is logged once;
    training goes on.
    """

    def __init__(
        self,
        *positional: Any,
        ranks: Sequence[int] | None = None,
        rank: int | None = None,
        **parameters: Any,
    ) -> None:
        """Parameters: see `PyTorchProfilerConfig`, by name or in its order. `ranks`: who profiles at all
        (default:
        every rank).

        Raises:
            TypeError: more positional parameters than there are, or one given twice.
            ValueError: a parameter that does not fit, by name, value and what is allowed.
        """
        parameters = _named(positional, parameters)
        if "activities" in parameters:
            chosen = parameters["activities"]
            parameters["activities"] = (chosen,) if isinstance(chosen, str) else tuple(chosen)
        self.config = PyTorchProfilerConfig(**parameters)
        self._rank = _rank() if rank is None else rank
        self._enabled = ranks is None or self._rank in ranks
        self._num_minibatches: int | None = None
        self._calls = {FORWARD: 0, FORWARD_BACKWARD: 0}
        self._running: tuple[str, TorchProfile] | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **more: Any) -> PyTorchProfiler:
        """From the YAML section, which must hold every parameter and nothing else.

        Raises:
            ValueError: missing and unknown parameters, `schedule_wait` (which is computed), or values that do
                not fit.
        """
        return cls(**checked(config), **more)

    @property
    def schedule_wait(self) -> int | None:
        """Calls of a cycle before its warm-up; None before `init_fwd_bwd_schedule`."""
        if self._num_minibatches is None:
            return None
        return self._num_minibatches - self.config.schedule_warmup - self.config.schedule_active

    def init_fwd_bwd_schedule(self, num_minibatches: int) -> None:
        """Set `schedule_wait` = `num_minibatches` - `schedule_warmup` - `schedule_active`; again with the
        same number is fine.

        Raises:
            ValueError: `schedule_wait` would be negative, or the number differs from an earlier one.
        """
        warmup, active = self.config.schedule_warmup, self.config.schedule_active
        if self._num_minibatches not in (None, num_minibatches):
            raise ValueError(
                f"num_minibatches changed from {self._num_minibatches} to {num_minibatches}: make a new"
                " profiler for a new schedule"
            )
        wait = num_minibatches - warmup - active
        if wait < 0:
            raise ValueError(
                f"schedule_wait should be greater than or equal to 0, got {wait}: num_minibatches"
                f" {num_minibatches} - schedule_warmup {warmup} - schedule_active {active}; use at least"
                f" {warmup + active} minibatches or a shorter schedule"
            )
        self._num_minibatches = num_minibatches

    def start(self, forward_only: bool = False) -> None:
        """Before a call: inference with `forward_only`, else training.

        Raises:
            RuntimeError: a training call before `init_fwd_bwd_schedule`.
        """
        kind = FORWARD if forward_only else FORWARD_BACKWARD
        if not forward_only and self._num_minibatches is None:
            raise RuntimeError(
                "call init_fwd_bwd_schedule(num_minibatches) before start() of a training call"
            )
        if not self._enabled:
            return
        if self._running:  # an exception kept the last call from its stop()
            log_once(
                f"PyTorchProfiler: a {self._running[0]} call was not stopped; what it recorded is dropped"
            )
            self._discard()
        action = self._action(kind)
        if action == "none":
            return
        with time_limits_wait():  # what the program raises is its own
            try:
                profile = self._make_profile(action)
                profile.start()
                self._running = (kind, profile)
            except Exception as error:
                log_once(f"PyTorchProfiler did not start: {error}")

    def stop(self, forward_only: bool = False) -> None:
        """After the call: save what was recorded, and count the call."""
        kind = FORWARD if forward_only else FORWARD_BACKWARD
        try:
            with time_limits_wait():
                self._end_running(kind)
        finally:
            self._calls[kind] += 1

    def _end_running(self, kind: str) -> None:
        if not self._running:
            return
        running_kind, profile = self._running
        self._running = None
        try:
            profile.stop()
            if running_kind == kind and self._action(kind) == "record":
                self._save(profile, kind)
        except Exception as error:
            log_once(f"PyTorchProfiler could not save a {kind} call: {error}")

    @contextlib.contextmanager
    def call(self, forward_only: bool = False) -> Iterator[None]:
        """`with prof.call(forward_only=True): run()`: stopped on every way out."""
        self.start(forward_only)
        try:
            yield
        finally:
            self.stop(forward_only)

    def _action(self, kind: str) -> str:
        """What the schedule wants of the next call: none, warmup or record."""
        number, repeat = self._calls[kind], self.config.schedule_repeat
        if kind == FORWARD:
            return "record" if number < repeat or not repeat else "none"
        wait = self.schedule_wait or 0
        warmup, length = self.config.schedule_warmup, self._num_minibatches or 1
        if repeat and number >= repeat * length:
            return "none"
        place = number % length
        return "none" if place < wait else "warmup" if place < wait + warmup else "record"

    def _make_profile(self, action: str) -> TorchProfile:
        import torch

        from rlprof_ops.backends.torch.torch_options import TorchOptions
        from rlprof_ops.backends.torch.torch_recorder import make_profile

        config = self.config
        switches = {
            name: getattr(config, name)
            for name in ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
        }
        options = TorchOptions(
            activities=tuple(activity.lower() for activity in config.activities),
            switches=switches,
            # Warm-up is torch's own: the tracer is prepared, nothing is kept.
            warmup=1 if action == "warmup" else 0,
            active=1 if action == "warmup" else 0,
            all_threads=False,
        )
        if "cuda" in options.activities and not torch.cuda.is_available():
            log_once("PyTorchProfiler: no CUDA here, only the CPU is recorded")
        return make_profile(torch, options, _ignore if action == "warmup" else None)

    def _discard(self) -> None:
        running, self._running = self._running, None
        if running:
            with contextlib.suppress(Exception):
                running[1].stop()

    def _save(self, profile: TorchProfile, kind: str) -> None:
        folder = Path(self.config.output_dir) / kind
        folder.mkdir(parents=True, exist_ok=True)
        number = self._calls[kind]
        written: Path | None = None
        if self.config.export_chrome_trace:
            written = folder / f"{self.config.chrome_filename_prefix}_rank{self._rank}_{kind}_{number}.json"
            self._export(profile, written)
        if self.config.export_tensorboard:
            # The name that TensorBoard's plugin looks for, as torch.profiler.tensorboard_trace_handler writes
            # it.
            host = report_names.safe(socket.gethostname())
            name = f"{host}_{os.getpid()}_rank{self._rank}.{time.time_ns()}.pt.trace.json"
            if written is None:
                self._export(profile, folder / name)
            else:  # the same content: torch exports a profile once
                partial = folder / f".{name}"
                shutil.copyfile(written, partial)
                partial.replace(folder / name)

    def _export(self, profile: TorchProfile, path: Path) -> None:
        partial = path.with_name(f".{path.name}")
        try:
            profile.export_chrome_trace(str(partial))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


class PyTorchProfilerFunc:
    """One `record_function` with `start()` and `stop()` that decides by itself whether it is on.

    `enabled=False`: both do nothing and torch is not imported, so no caller needs an `if`.
    """

    def __init__(self, name: str, enabled: bool = True) -> None:
        self.name = name
        self.enabled = enabled
        self._open: list[AbstractContextManager[object]] = []

    def start(self) -> None:
        """Begin the range; ranges of one object nest."""
        if not self.enabled:
            return
        try:
            import torch

            opened: AbstractContextManager[object] = torch.profiler.record_function(self.name)
            opened.__enter__()
            self._open.append(opened)
        except Exception as error:
            log_once(f"PyTorchProfilerFunc {self.name!r} did not start: {error}")

    def stop(self) -> None:
        """End the range begun last; without one nothing happens."""
        if self._open:
            self._open.pop().__exit__(None, None, None)

    def __enter__(self) -> PyTorchProfilerFunc:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.stop()


def _ignore(profile: TorchProfile) -> None:
    return None


def _named(positional: Sequence[Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """All parameters by name."""
    order = [field.name for field in fields(PyTorchProfilerConfig)]
    if len(positional) > len(order):
        raise TypeError(f"PyTorchProfiler takes at most {len(order)} parameters: {', '.join(order)}")
    found = dict(zip(order, positional, strict=False))
    twice = sorted(set(found) & set(parameters))
    if twice:
        raise TypeError(f"PyTorchProfiler got several values for {', '.join(twice)}")
    return found | parameters


def _rank() -> int:
    """This process's rank: of torch.distributed when it runs, else of the launcher's `RANK`, else 0."""
    import sys

    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else 0
