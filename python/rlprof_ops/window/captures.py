"""The captures of one process: which specs can be taken of it, their gates, and what the manifest is told
about each. The process itself drives them at its steps and ranges, or its node's supervisor does, from
outside.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from rlprof_ops import backends, env_names
from rlprof_ops.backends.contract import CaptureError, WindowRecorder, Yielded
from rlprof_ops.backends.window_support import MAX_MB
from rlprof_ops.backends.window_timeouts import close_wait_s, open_wait_s
from rlprof_ops.host import processes
from rlprof_ops.host.log_line import log_once
from rlprof_ops.host.threads.own_thread import OwnThread
from rlprof_ops.request.steps import Window
from rlprof_ops.window.delivery import Delivery, Events, ProfiledProcess
from rlprof_ops.window.gate import ALWAYS_QUIET, Gate, OpenWindow, PhaseGate, StepGate, TimedGate
from rlprof_ops.window.output_dir import OutputDir
from rlprof_ops.window.part_gate import PartGate
from rlprof_ops.window.reason import failure_of
from rlprof_ops.window.room import lack_of_room
from rlprof_ops.words import limit, size

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec

_LOOK_S = 0.5  # between two looks whether reports get on
_SIZE_S = 0.25  # between two looks how large an open window is


class Choose(Protocol):
    """Who takes `spec` of this process, or None and the reason why nobody can. `beside`: all specs of the
    process, which may exclude each other. `asked_by`: the id of a capture on demand, or who else asked.
    """

    def __call__(
        self, spec: CaptureSpec, beside: Sequence[CaptureSpec], asked_by: str | None
    ) -> tuple[WindowRecorder | None, str]: ...


@dataclass
class ProcessCapture:
    """One spec that can be taken of this process, or cannot (`impossible` says why). `asked_by`: the id of an
    on-demand request.
    """

    spec: CaptureSpec
    taker: WindowRecorder | None
    impossible: str
    delivery: Delivery
    gate: Gate = field(init=False)
    target: Path | None = None
    yielded: tuple[OpenWindow, str] | None = None  # the window that could not open yet, and why
    asked_by: str | None = None


class Captures:
    """All captures of a process, opened and closed by steps and ranges. No method raises for a profiler's
    failure.
    """

    def __init__(
        self,
        who: ProfiledProcess,
        root: Path,
        tmp: Path,
        events: Events,
        output_dir: OutputDir,
        choose: Choose,
        say: Callable[[str, str], None] = log_once,
    ) -> None:
        """`root`, `tmp`, `say`: as `Delivery` has them."""
        self._who = who
        self._root = root
        self._tmp = tmp
        self._events = events
        self._output_dir = output_dir
        self._choose = choose
        self._say = say
        self._all: list[ProcessCapture] = []
        self._phased: list[ProcessCapture] = []
        self._finishing: list[OwnThread] = []
        self._written = ""  # whose report the last of these writes
        self._parts: list[PartGate] = []
        self._changing = threading.RLock()  # one window opens or closes at a time
        self._closing = ""  # which one

    def add(
        self,
        spec: CaptureSpec,
        beside: Sequence[CaptureSpec] = (),
        asked_by: str | None = None,
        timed: bool = False,
    ) -> ProcessCapture:
        """Take `spec` from now on. `beside`: all specs of the process, which may exclude each other."""
        others = (capture.spec for capture in self._all)
        taker, impossible = self._choose(spec, [*beside, *others], asked_by)
        suffix = taker.suffix if taker else ""
        delivery = Delivery(
            self._who, spec.backend, suffix, self._root, self._tmp, self._events, self._output_dir, self._say
        )
        capture = ProcessCapture(spec, taker, impossible, delivery, asked_by=asked_by)

        def on_open(window: OpenWindow) -> None:
            window.asked_by = asked_by
            self._open(capture, window)

        def on_close(window: OpenWindow, partial: bool) -> None:
            self._close(capture, window, partial)

        if timed:
            capture.gate = TimedGate(on_open, on_close)
        elif spec.each == "phase":
            capture.gate = PhaseGate(spec.steps.windows(), on_open, on_close)
            self._phased.append(capture)
        elif spec.part is not None:
            missed = capture.delivery.failed
            at_ranges = backends.get(spec.backend).parts_at_ranges
            capture.gate = PartGate(
                spec.windows(),
                spec.part,
                lambda: float(getattr(taker, "lead_s", 0.0)),
                on_open,
                on_close,
                missed,
                at_ranges,
            )
            self._parts.append(capture.gate)
        else:
            capture.gate = StepGate(spec.steps.windows(), on_open, on_close)
        self._all.append(capture)
        return capture

    def remove(self, capture: ProcessCapture) -> None:
        """Forget a capture whose window is done."""
        self._all.remove(capture)

    def of_window(self, window: Window, asked_by: str | None) -> ProcessCapture | None:
        """The capture that plans `window`."""
        return next(
            (
                capture
                for capture in self._all
                if capture.asked_by == asked_by and window in capture.spec.windows()
            ),
            None,
        )

    def taken(self, window: Window) -> None:
        """A window of the request has had its turn, by somebody before."""
        for capture in self._all:
            if capture.asked_by is None:
                capture.gate.taken(window)

    def adopt(self, capture: ProcessCapture, window: OpenWindow, target: Path) -> None:
        """Go on with a window that somebody before has opened, who is gone, as the capture's recorder does.
        Its report will be `target`.
        """
        capture.gate.current, capture.target = window, target
        capture.gate.taken(window.window)  # closed early, it does not open again
        window.asked_by = capture.asked_by
        self._bound_size(capture, window)

    def not_heard(self, first: int, stop: int, reason: str) -> None:
        """Nobody told of the steps from `first` to before `stop`: what was open was so all the time, and
        windows that came and went are lost for that reason.
        """
        for capture in self._all:
            for window in capture.gate.not_heard(first, stop):
                capture.delivery.failed(OpenWindow(window, asked_by=capture.asked_by), reason)

    # -- steps and phases

    def enter(self, step: int, late: bool = False, began_s: float | None = None) -> None:
        """Step `step` begins; `late`: it has begun before, and what opens now lacks some of it. Windows
        inside it count from `began_s`, else from now.
        """
        # What ends is ended before what begins: two windows of one profiler may be neighbours.
        for capture in self._all:
            if capture.gate.ends_before(step):
                capture.gate.close(partial=True)
        for capture in self._all:
            before = capture.gate.current
            if isinstance(capture.gate, PartGate):
                if late:
                    capture.gate.begin_late(step)
                else:
                    capture.gate.enter(step, began_s)
                continue
            capture.gate.enter(step)
            if late and capture.gate.current is not None and capture.gate.current is not before:
                capture.gate.current.late = True
            if capture.target and capture.taker:
                self._guarded(capture, capture.taker.entered, step)

    def prepare_parts(self, step: int) -> None:
        """What the thread that trains does before a window inside `step`; no other window waits for it."""
        for capture in tuple(self._all):
            prepare = getattr(capture.taker, "prepare", None)
            if prepare is not None and isinstance(capture.gate, PartGate) and capture.gate.waiting:
                self._guarded(capture, prepare, step)

    def leave(self, step: int, lives: bool = True) -> None:
        """Step `step` ended; where its process no more `lives`, not in what is open."""
        for capture in reversed(self._all):
            if (current := capture.gate.current) is not None and not lives:
                current.seen = [seen for seen in current.seen if seen != step]
            capture.gate.leave(step)

    def tell_phase(self, name: str, step: int | None = None, at_s: float | None = None) -> None:
        """A phase begins, or began at `at_s`, in `step` or in the step that runs: windows inside steps count
        from there.
        """
        for gate in self._parts:
            gate.begin_phase(name, step, at_s)

    def tell_parts(self, step: int, began_s: float, runs: bool) -> None:
        """What a thread of its own opens inside `step`, which began at `began_s`, or has ended."""
        for gate in self._parts:
            if gate.at_ranges:
                continue
            if runs:
                gate.enter(step, began_s)
            else:
                gate.leave(step)

    @property
    def parts_due(self) -> bool:
        """A window inside the step that runs opens or closes with the next `visit_parts`."""
        return any(gate.due for gate in self._parts)

    def visit_parts(self, opens: bool = True) -> None:
        """The thread that trains is where its profilers may be started and stopped."""
        for gate in self._parts:
            gate.visit(opens)

    def begin_phase(self, name: str) -> tuple[ProcessCapture, ...]:
        """Open the captures that want this phase of this step."""
        return tuple(capture for capture in self._phased if _phase_gate(capture).begin(name))

    def end_phase(self, opened: Sequence[ProcessCapture], partial: bool) -> None:
        for capture in reversed(opened):
            _phase_gate(capture).end(partial)

    def close_all(self) -> None:
        """End every open window before its last step ended: partial, unless it was to go on until the end
        anyway.
        """
        for capture in reversed(self._all):
            current = capture.gate.current
            if current or capture.gate.waiting:
                ends = current is None or current.window.stop is not None
                capture.gate.close(partial=ends and capture.asked_by is None)

    def finish(self, seconds: float | None = None) -> None:
        """Wait for the reports that are still being written beside the training, as long as they get on.
        `seconds`: for one that does not; None for the knob's.
        """
        with self._changing:  # another thread may be closing a window
            finishing, self._finishing = self._finishing, []
        seconds = close_wait_s() if seconds is None else seconds
        moved_at, seen = time.monotonic(), self._progress() if finishing else None
        while any(thread.is_alive() for thread in finishing):
            for thread in finishing:
                thread.join(min(_LOOK_S, seconds) / len(finishing))
            if (now := self._progress()) != seen:
                moved_at, seen = time.monotonic(), now
            elif time.monotonic() - moved_at >= seconds:
                log_once(
                    f"a profiler has written nothing for {limit(seconds)} ({env_names.CLOSE_WAIT_SECONDS}):"
                    " its report is left to the end of the job"
                )
                break

    def _progress(self) -> tuple[int, dict[str, int]]:
        """What changes as long as reports are being written: importers' processor time, files that grow."""
        sizes: dict[str, int] = {}
        with contextlib.suppress(OSError), os.scandir(self._tmp) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
        return processes.importing_ticks(), sizes

    def _finish_before_next(self) -> str:
        """A session that still writes its last window cannot open the next, and training waits for that only
        so long. Returns the name of the window that was still written, if any. Raises CaptureError.
        """
        seconds = open_wait_s()
        until = time.monotonic() + seconds
        busy = ""
        for thread in self._finishing:
            if thread.is_alive():
                busy = self._written
                thread.join(max(0.0, until - time.monotonic()))
        self._finishing = [thread for thread in self._finishing if thread.is_alive()]
        if self._finishing:
            raise CaptureError(
                f"nsys was still writing the last window's report after {limit(seconds)}"
                " (RLPROF_OPEN_WAIT_SECONDS)"
            )
        return busy

    def inactive_step_range(self, step: int) -> tuple[int, int]:
        """The half-open range of steps around `step` in which nothing opens or closes."""
        low, high = ALWAYS_QUIET
        for capture in tuple(self._all):
            one_low, one_high = capture.gate.inactive_step_range(step)
            low, high = max(low, one_low), min(high, one_high)
        return low, high

    @property
    def any_open(self) -> bool:
        return any(capture.gate.current for capture in tuple(self._all))

    @property
    def unsaved(self) -> bool:
        """A window is open, or opens at any time, or its report is being written."""
        finishing = tuple(self._finishing)
        return self.any_open or self.parts_armed or any(thread.is_alive() for thread in finishing)

    @property
    def phases_armed(self) -> bool:
        """The next range may open a window."""
        return any(_phase_gate(capture).armed for capture in self._phased)

    def has_parts(self, step: int) -> bool:
        """Whether windows inside steps are open or to come in `step` or later."""
        return any(gate.has_more(step) for gate in self._parts)

    @property
    def parts_armed(self) -> bool:
        """A window opens at a time inside the step that runs."""
        return any(gate.waiting for gate in self._parts)

    @property
    def any_armed(self) -> bool:
        return self.any_open or self.phases_armed or self.parts_armed

    @property
    def open_backends(self) -> set[str]:
        """Whose ranges are wanted: what opens inside the step that runs has to know of them before."""
        gates = ((capture.spec.backend, capture.gate) for capture in self._all)
        return {backend for backend, gate in gates if gate.current or gate.waiting}

    # -- one window

    def _open(self, capture: ProcessCapture, window: OpenWindow) -> None:
        if window.part is None:
            for other in self._parts:
                other.settle()
        busy = self._closing
        with self._changing:
            self._open_alone(capture, window, busy)

    def _open_alone(self, capture: ProcessCapture, window: OpenWindow, busy: str) -> None:
        if capture.taker is None:
            self._not_opened(capture, window, capture.impossible)
            return
        try:
            if backends.from_outside(capture.spec.backend):  # a session writes one window before the next
                busy = self._finish_before_next() or busy
            if self._other_open(capture):
                raise CaptureError(f"another {capture.spec.backend} window is open in this process")
            begins_s = time.monotonic()
            if why := window.too_late(begins_s, 0.0, busy):
                raise CaptureError(why)
            target = capture.delivery.target(window)
            if why := lack_of_room(target.parent, *getattr(capture.taker, "scratch", ())):
                raise CaptureError(why)
            capture.target = target
            capture.taker.open(target)
            window.opened_s = float(getattr(capture.taker, "collects_s", 0.0)) or time.monotonic()
            if why := window.too_late(window.opened_s, window.opened_s - begins_s, busy):
                self._discard(capture.taker, window)
                raise CaptureError(why)
        except Yielded as error:
            self._yield(capture, window, str(error))
            return
        except Exception as error:  # whatever a profiler does, training goes on
            self._not_opened(capture, window, failure_of(error))
            return
        bound = capture.spec.options.get(MAX_MB)
        capture.delivery.opened(window, **({} if bound is None else {MAX_MB: bound}))
        self._bound_size(capture, window)
        if window.part is not None:
            self._guarded(capture, capture.taker.entered, window.window.start)

    def _bound_size(self, capture: ProcessCapture, window: OpenWindow) -> None:
        if getattr(capture.taker, "most_bytes", 0) or getattr(capture.taker, "scratch", ()):
            OwnThread(self._watch_size, capture, window).start()

    def _watch_size(self, capture: ProcessCapture, window: OpenWindow) -> None:
        """Close a window when it is as large as its report may be, or takes the last of the disk."""
        taker, gate = cast(Any, capture.taker), capture.gate
        scratch = getattr(taker, "scratch", ())
        folders = [capture.target.parent, *scratch] if capture.target is not None else scratch
        while gate.current is window:
            found, why = taker.size_bytes(), ""
            if found >= (taker.most_bytes or math.inf):
                why = (
                    f", so that it stays within {MAX_MB}{getattr(taker, 'size_by', '')}: raise that option,"
                    " or take less in a window"
                )
            elif lacks := lack_of_room(*folders, more_bytes=0 if scratch else int(found)):
                why = f": {lacks}"
            if why:
                with self._changing:
                    if gate.current is window:
                        window.note = f"closed with {size(found)} in it{why}"
                        Gate.close(gate, partial=True)  # one of parts waits for a thread that waits for us
            time.sleep(_SIZE_S)

    def _yield(self, capture: ProcessCapture, window: OpenWindow, reason: str) -> None:
        """Something of the program's own is in the way; the window's next step tries again."""
        before, capture.yielded = capture.yielded, (window, reason)
        if before is None or before[0].window != window.window or before[0].phase != window.phase:
            self._not_opened(capture, window, reason)
        else:
            capture.target = None
            capture.gate.drop()
        capture.gate.retry(window)

    def _other_open(self, capture: ProcessCapture) -> bool:
        return any(
            other is not capture
            and other.gate.current
            and other.target
            and (other.spec.backend, getattr(other.taker, "suffix", ""))
            == (capture.spec.backend, getattr(capture.taker, "suffix", ""))
            for other in self._all
        )

    def _close(self, capture: ProcessCapture, window: OpenWindow, partial: bool) -> None:
        halt = getattr(capture.taker, "halt", None)
        if halt is not None and capture.target is not None:
            self._guarded(capture, lambda _: halt(), window.window.start)  # another one may be written now
        with self._changing:
            self._closing = f"{capture.spec.backend} in {window}"
            try:
                self._close_alone(capture, window, partial)
            finally:
                self._closing = ""

    def _close_alone(self, capture: ProcessCapture, window: OpenWindow, partial: bool) -> None:
        target, capture.target = capture.target, None
        if capture.taker is None or target is None:
            return
        partial = partial or window.late
        try:
            finished = capture.taker.close()
            window.closed_s = float(getattr(capture.taker, "stopped_s", 0.0)) or time.monotonic()
        except Exception as error:
            capture.delivery.failed(window, failure_of(error))
            return
        if getattr(
            capture.taker, "late", False
        ):  # the tool writes when the process ends; harvest finds it by its name
            return
        note = getattr(capture.taker, "cut_short", "")
        if window.note:
            note = window.note
        elif note:
            seen = getattr(capture.taker, "steps", window.seen)
            partial, window.seen = True, window.seen[:1] + [step for step in window.seen[1:] if step in seen]
        elif capture.yielded and capture.yielded[0].window == window.window:
            note = f"it begins at step {window.seen[0]}: until then {capture.yielded[1]}"
        window.name_by_seen()
        if isinstance(finished, Path):
            self._finish(capture, window, partial, lambda: finished, note=note)
            return
        # Nothing more enters this report, so the next step may begin while it is written.
        self._in_background(
            window, lambda: self._finish(capture, window, partial, finished.wait, finished, note)
        )

    def _discard(self, taker: WindowRecorder, window: OpenWindow) -> None:
        """Close `window`, which holds nothing of what was asked; the profiler writes it all the same."""
        finished = taker.close()

        def remove() -> None:
            with contextlib.suppress(CaptureError, OSError):
                (finished if isinstance(finished, Path) else finished.wait()).unlink()

        self._in_background(window, remove)

    def _in_background(self, window: OpenWindow, action: Callable[[], None]) -> None:
        """Do for `window` what the next one has to wait for, and the training does not."""
        self._written = str(window)
        try:
            thread = OwnThread(action).start()
        except RuntimeError:  # no new threads at interpreter exit
            action()
        else:
            self._finishing.append(thread)

    def _finish(
        self,
        capture: ProcessCapture,
        window: OpenWindow,
        partial: bool,
        wait: Callable[[], Path],
        stopping: object = None,
        note: str = "",
    ) -> None:
        delivery = capture.delivery
        try:
            delivery.closed(window, wait(), partial, note or str(getattr(stopping, "note", "")))
            for first, last, path in getattr(capture.taker, "extra", ()):
                own = OpenWindow(Window(first, last + 1), window.phase, [first, last], window.asked_by)
                delivery.closed(own, path, partial=False)
        except Exception as error:
            delivery.failed(window, failure_of(error))

    def _guarded(self, capture: ProcessCapture, action: Callable[[int], None], step: int) -> None:
        try:
            action(step)
        except Exception as error:
            log_once(f"{capture.spec.backend} at step {step}: {failure_of(error)}")

    def _not_opened(self, capture: ProcessCapture, window: OpenWindow, reason: str) -> None:
        capture.target = None
        capture.gate.drop()
        capture.delivery.failed(window, reason)


def _phase_gate(capture: ProcessCapture) -> PhaseGate:
    assert isinstance(capture.gate, PhaseGate)
    return capture.gate
