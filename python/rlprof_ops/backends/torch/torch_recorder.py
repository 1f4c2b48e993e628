"""torch.profiler over a window: one gzip Chrome trace, or one per cycle of a schedule."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import IO, ClassVar, Protocol, cast

from rlprof_ops.backends import report_names
from rlprof_ops.backends.contract import CaptureError, Options, Yielded
from rlprof_ops.backends.graph_captures import captures
from rlprof_ops.backends.torch import torch_options
from rlprof_ops.backends.torch.running_profilers import running
from rlprof_ops.backends.torch.torch_options import TorchOptions, parse
from rlprof_ops.backends.torch.trace_check import GPUS_KEY
from rlprof_ops.backends.window_timeouts import close_wait_s, open_wait_s
from rlprof_ops.host.after_import import after_import
from rlprof_ops.words import size

_PROBE_BYTES = 1 << 20
# a trace shrinks 15-fold at once; the levels above cost seconds of the training's time for a few percent
_GZIP_LEVEL = 3
_MOST_OF_MAX = 0.8  # of `max_mb`, by a speed that a window before had
# In which operators of other threads come to their end: see `_harmless_profile`.
_IN_FLIGHT_S = 0.05


class TorchProfile(Protocol):
    """What we use of `torch.profiler.profile`."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def step(self) -> None: ...

    def export_chrome_trace(self, path: str) -> object: ...


class TorchRecorder:
    """Records from `open` to `close`. With a schedule, the cycles after the first are left in `extra` as
    (first, last step, file). `cut_short` says why the recording ended before `close`, after `steps`.

    `open` and `close` raise `CaptureError`.
    """

    suffix = torch_options.SUFFIX
    size_by = " (by the speed of the window before)"
    _prepared = False
    _bytes_per_s: ClassVar[dict[str, float]] = {}  # of this process's last trace of these options and phase

    def __init__(self, spec: Options) -> None:
        self._spec = spec
        self._profile: TorchProfile | None = None
        self._target: Path | None = None
        self._options = TorchOptions()
        self._kind = ""
        self._cycles: list[tuple[int, int, Path]] = []
        self._problem: CaptureError | None = None
        self.steps: list[int] = []
        self.extra: list[tuple[int, int, Path]] = []
        self.cut_short = ""
        self.stopped_s = self._started_s = 0.0
        self.most_bytes = 0.0
        after_import("torch.autograd.profiler", running.follow)
        after_import("torch.cuda.graphs", captures.follow)

    def open(self, target: Path) -> None:
        try:
            self._options = parse(self._spec.options, self._spec.flags)
        except ValueError as error:
            raise CaptureError(str(error)) from None
        torch = _torch()
        self._target, self.steps, self._cycles, self.extra = target, [], [], []
        self._problem, self.cut_short, self.stopped_s = None, "", 0.0

        def start() -> None:
            if self._options.switches.get("with_stack"):
                _spare_own_profile()
            profile = make_profile(torch, self._options, self._on_trace if self._options.scheduled else None)
            with captures.apart(open_wait_s()):
                profile.start()
            self._profile = profile

        any_thread = self._options.all_threads and _all_threads() is not None
        name = report_names.parse(target.name)
        self._kind = f"{dataclasses.replace(self._options, max_mb=0)} {name and name.phase}"
        known = any_thread and self._kind in TorchRecorder._bytes_per_s and not self._options.scheduled
        self.most_bytes = _MOST_OF_MAX * self._options.max_mb * 1e6 if known else 0.0
        try:
            running.begin(self, start, any_thread=any_thread)
            self._started_s = time.monotonic()
        except CaptureError:
            raise
        except Exception as error:
            raise CaptureError(f"torch.profiler did not start: {error}") from error

    def size_bytes(self) -> float:
        """Of the open window's trace before compression, as fast as the last one of its kind grew."""
        return TorchRecorder._bytes_per_s.get(self._kind, 0.0) * (time.monotonic() - self._started_s)

    def _measured(self, size_bytes: int) -> None:
        TorchRecorder._bytes_per_s[self._kind] = size_bytes / (self.stopped_s - self._started_s)

    def prepare(self, step: int) -> None:
        """Start torch.profiler for nothing, once a process: its first start takes 0.8 s (2.13)."""
        torch = sys.modules.get("torch")
        if torch is None or TorchRecorder._prepared:
            return
        TorchRecorder._prepared = True
        options = parse(self._spec.options, self._spec.flags)

        def start() -> None:
            self._profile = make_profile(torch, options)
            with captures.apart(open_wait_s()):
                self._profile.start()

        def stop() -> None:
            assert self._profile is not None
            self._stop(self._profile)

        with contextlib.suppress(CaptureError):
            running.begin(self, start, any_thread=False)
            running.end(self, stop)
        self._profile = None

    def entered(self, step: int) -> None:
        """A step of the window begins: the schedule counts it from its second on."""
        with running.as_ours():
            if self._profile is not None and not self.cut_short and self._problem is None:
                if self._options.scheduled and self.steps:
                    self._next_of_schedule(self._profile)
                self.steps.append(step)

    def _next_of_schedule(self, profile: TorchProfile) -> None:
        """A step in which torch may begin or end a cycle."""
        try:
            with captures.apart(open_wait_s()):
                profile.step()
        except CaptureError as error:
            self._problem = error

    def close(self) -> Path:
        running.settle()
        running.end(self, self._end)
        profile, self._profile = self._profile, None
        target, options = self._target, self._options
        if self._problem is not None:
            raise self._problem
        if profile is None or target is None:
            raise CaptureError("the torch profiler was not running")
        if options.scheduled:
            if not self._cycles:
                raise CaptureError(
                    f"the schedule wait={options.wait} warmup={options.warmup} active={options.active or 1}"
                    f" ended before its first active step: the window had {len(self.steps)} steps"
                )
            self._cycles[0][2].replace(target)
            self.extra = self._cycles[1:]
        return target

    def _end(self) -> None:
        """Stop and export; why that failed is kept for `close`."""
        profile, target = self._profile, self._target
        assert profile is not None and target is not None
        try:
            self.stopped_s = time.monotonic()  # what comes while torch stops is in no trace
            self._stop(profile)
            if not self._options.scheduled:
                export(profile, target, self._options.max_mb, self._measured)
        except CaptureError as error:
            self._problem = error
        except Exception as error:
            self._problem = CaptureError(f"torch.profiler could not export: {error}")

    def cut(self, reason: str) -> None:
        """Stop and export now, for `reason`; `close` hands it over. See `running_profilers`."""
        self.cut_short = reason
        with running.as_ours():
            self._end()
            if self._options.scheduled and not self._cycles and self._problem is None:
                self._problem = CaptureError(f"{reason}, before the first active step of the schedule")

    def abandon(self, reason: str) -> None:
        """It cannot be stopped from here: `close` says `reason`."""
        self._problem = CaptureError(reason)

    def _stop(self, profile: TorchProfile) -> None:
        with contextlib.ExitStack() as alone:
            try:
                alone.enter_context(captures.apart(close_wait_s()))
            except CaptureError:
                running.leave()
                raise
            try:
                profile.stop()
            except CaptureError:  # of a schedule's export, which torch calls from here
                raise
            except Exception as error:
                # Left running it would crash the process, when the next one starts or at the end (2.13).
                try:
                    _torch().autograd._disable_profiler()
                except Exception:
                    running.leave()
                raise CaptureError(f"torch.profiler did not stop: {error}") from error

    def _on_trace(self, profile: TorchProfile) -> None:
        """The end of one cycle; `self.steps` ends with its last active step."""
        assert self._target is not None
        active = min(self._options.active or 1, len(self.steps))
        number = len(self._cycles)
        path = self._target.with_name(f"{self._target.name[: -len(self.suffix)]}.cycle{number}{self.suffix}")
        export(profile, path, self._options.max_mb)
        self._cycles.append((self.steps[-active], self.steps[-1], path))


def make_profile(
    torch: ModuleType, options: TorchOptions, on_trace: Callable[[TorchProfile], None] | None = None
) -> TorchProfile:
    """A `torch.profiler.profile`, not started. CUDA is recorded where it is; elsewhere only the CPU."""
    kinds = {"cpu": torch.profiler.ProfilerActivity.CPU, "cuda": torch.profiler.ProfilerActivity.CUDA}
    chosen = [kinds[name] for name in options.activities if name != "cuda" or torch.cuda.is_available()]
    arguments: dict[str, object] = {"activities": chosen or [kinds["cpu"]], **options.switches}
    if options.all_threads and (setting := _all_threads()) is not None:
        arguments["experimental_config"] = setting
    make = _harmless_profile(torch, "experimental_config" in arguments)
    if on_trace is not None:
        arguments["on_trace_ready"] = on_trace
        arguments["schedule"] = torch.profiler.schedule(
            wait=options.wait, warmup=options.warmup, active=options.active or 1, repeat=options.repeat
        )
    made: TorchProfile = make(**arguments)
    uuids = _uuids(torch)
    if uuids and hasattr(made, "preset_metadata_json"):  # torch 2.3 has it
        made.preset_metadata_json(GPUS_KEY, json.dumps(uuids))
    return made


def _spare_own_profile() -> None:
    """Raises `Yielded` where the program has a profile function of its own, as cProfile's before Python 3.12:
    torch's for stacks would replace it, and leave none.
    """
    if sys.getprofile() is not None or threading.getprofile() is not None:
        raise Yielded(
            "yielded to a Python profiler of the program's own (sys.getprofile()): torch's `with_stack` would"
            " end it; switch with_stack off, or choose other steps for one of the two"
        )


def _harmless_profile(torch: ModuleType, all_threads: bool) -> Callable[..., TorchProfile]:
    """A `torch.profiler.profile` that ends without harm.

    torch 2.13 frees what an operator of another thread is still writing to when the recording ends: the heap
    is corrupted, and beside a thread that computes the process ends within a hundred windows. So operators
    are no longer recorded some time before, in which those that run come to their end. Ranges that are open
    end with it: see `open_ranges`.
    """

    known = torch.profiler.profile  # or what the program has put there
    base = known if isinstance(known, type) else torch.profiler.profiler.profile

    class Profile(base):  # type: ignore[misc, valid-type]
        def stop_trace(self) -> None:
            with running.ranges.ended():
                if all_threads:
                    self.toggle_collection_dynamic(False, [torch.profiler.ProfilerActivity.CPU])
                    time.sleep(_IN_FLIGHT_S)
                super().stop_trace()

    return cast("Callable[..., TorchProfile]", Profile)


def _all_threads() -> object | None:
    """torch's setting by which all threads are recorded, and any may stop; None before torch 2.6."""
    try:
        from torch._C._profiler import _ExperimentalConfig
        from torch.autograd import _toggle_collection_dynamic  # noqa: F401  # what `_harmless_profile` ends by

        found: object = _ExperimentalConfig(profile_all_threads=True)
    except (ImportError, TypeError):
        return None
    return found


def _uuids(torch: ModuleType) -> dict[str, str]:
    """Device as this process counts -> UUID, which torch's traces do not tell: two processes may share a GPU,
    and device 0 of two may be two. Empty where CUDA is not in use yet: a profiler must not initialise it.
    """
    found: dict[str, str] = {}
    with contextlib.suppress(Exception):  # as of another backend, or of torch before 2.4
        if torch.cuda.is_initialized():
            for device in range(torch.cuda.device_count()):
                found[str(device)] = str(torch.cuda.get_device_properties(device).uuid)
    return found


def export(
    profile: TorchProfile, target: Path, max_mb: float, measured: Callable[[int], None] | None = None
) -> None:
    """Write `profile` as a gzip Chrome trace; `CaptureError` when it is larger than `max_mb` before
    compression, which `measured` hears before.

    torch itself would compress line by line at the highest level, which takes longer than the window.
    """
    plain = target.with_name(f"{target.name}.{os.getpid()}.json")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(plain))
        if not plain.exists():  # torch keeps the reason to itself
            raise CaptureError(f"torch.profiler wrote no trace into {target.parent}: {_why_not(plain)}")
        size_bytes = plain.stat().st_size
        if measured is not None:
            measured(size_bytes)
        if size_bytes > max_mb * 1e6:
            raise CaptureError(
                f"the trace has {size(size_bytes)} and max_mb is {max_mb:g} (MB): take fewer steps, switch"
                " with_stack and record_shapes off, or raise max_mb in the options"
            )
        with plain.open("rb") as source, _gzip_writer(target) as packed:
            shutil.copyfileobj(source, packed, 1 << 20)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    finally:
        plain.unlink(missing_ok=True)


def _why_not(path: Path) -> str:
    """Why a file cannot be written here, by trying."""
    try:
        with path.open("wb", buffering=0) as probe:
            left = _PROBE_BYTES
            while left:
                left -= probe.write(bytes(left)) or 0
    except OSError as error:
        return error.strerror or str(error)
    return "it gave no reason"


def _gzip_writer(path: Path) -> IO[bytes]:
    try:
        from isal import igzip  # several times faster, where the extra `analyze` is installed
    except ImportError:
        return cast(IO[bytes], gzip.open(path, "wb", compresslevel=_GZIP_LEVEL))
    packed: IO[bytes] = igzip.open(path, "wb", compresslevel=_GZIP_LEVEL)  # type: ignore[no-untyped-call]
    return packed


def _torch() -> ModuleType:
    try:
        import torch
    except ImportError as error:
        raise CaptureError(f"torch cannot be imported: {error}") from None
    found: ModuleType = torch
    return found
