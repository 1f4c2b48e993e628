"""Windows of this node's nsys sessions, opened and closed by its supervisor at the job's steps.

For processes that know no step: each was started under `nsys launch` and left a session file. Children of
such a process are inside its session. Every window ends as a report under its final name, and as events like
those of a process that has our runtime, so that harvest reads both alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from rlprof_ops.backends.nsight import nsys_options
from rlprof_ops.backends.window_support import TRAINER
from rlprof_ops.host.background import in_background
from rlprof_ops.request import CaptureSpec, ProfileRequest, Window
from rlprof_ops.request.step_part import StepPart
from rlprof_ops.request.steps import window_at
from rlprof_ops.runtime.on_demand.watcher import CaptureRequest
from rlprof_ops.runtime.process import session_file
from rlprof_ops.runtime.process.session_file import Session
from rlprof_ops.runtime.process.worker_identity import DRIVER
from rlprof_ops.supervisor.steps.watched_session import WatchedSession, has_events, read_left
from rlprof_ops.window import output_dir
from rlprof_ops.window.captures import ProcessCapture
from rlprof_ops.window.gate import OpenWindow
from rlprof_ops.window.output_dir import OutputDir

_MISSED = "no supervisor heard its steps: this node's or the head's was killed, and another one took over"


class Windows:
    """All sessions of one node that their own process does not gate. `cwd`: what the request's output_dir
    is relative to.
    """

    def __init__(
        self, node_dir: Path, request: ProfileRequest, say: Callable[[str], None], cwd: Path = Path()
    ) -> None:
        self._node_dir = node_dir
        self._cwd = cwd
        self._output_dir = OutputDir(output_dir.folder_of(request, cwd), say)
        self._request = request
        self._specs = _ours(request)
        by_log = request.steps_from is not None  # COMMAND is the trainer, whatever its adapter is called
        self._names_the_driver = by_log or any(DRIVER in spec.workers for spec in self._specs)
        self._say = say
        self._watched: dict[str, WatchedSession] = {}
        self._theirs: dict[str, ProcessCapture] = {}  # open by their trainer's calls, by session
        self._step = 0
        self._closed = False
        self._wanted: list[CaptureRequest] = []
        self._entered = 0  # the step that every session has been told of
        self._phases: list[tuple[str, int, float]] = []  # of that step, or of the next: since when
        self._gap_since = 0  # the step after which some may not have been heard
        self._gap_reason = _MISSED

    def take(self, request: ProfileRequest) -> bool:
        """Go by `request` from now on, unless the job was asked for something itself."""
        if self._request:
            return False
        self._request, self._specs = request, _ours(request)
        self._output_dir.folders = output_dir.folder_of(request, self._cwd)
        return True

    @property
    def parts(self) -> list[StepPart]:
        """The parts of steps that the job's windows hold, of whatever backend."""
        return [spec.part for spec in (self._request.captures if self._request else ()) if spec.part]

    def _watch(self, session: Session, specs: tuple[CaptureSpec, ...] = ()) -> WatchedSession:
        watched = WatchedSession(session, self._node_dir, specs, self._output_dir, self._say)
        self._watched[session.name] = watched
        return watched

    def concerned(self, step: int) -> bool:
        """Whether a window holds `step`, or one is open that does not."""
        return any(window_at(spec.windows(), step) for spec in self._specs) or any(
            watched.captures.any_open for watched in self._watched.values()
        )

    async def resume(self, step: int, running: bool) -> None:
        """Go on with the windows of a supervisor that was killed in step `step`; `running`: it has not ended.

        What was open stays open as long as its window lasts; what should be is opened.
        """
        self._step = step
        await self._look()
        for session in await asyncio.to_thread(session_file.read_all, self._node_dir, ended=True):
            if session.name not in self._watched and has_events(self._node_dir, session):
                self._watch(session)
        for watched in self._watched.values():
            left = await asyncio.to_thread(read_left, watched.events.path)
            capture = watched.take_over(left, step)
            if capture is None or left.window is None:
                continue
            # Who counted the seconds of a capture on demand is gone.
            stop, asked_by = left.window.stop, left.window.asked_by
            if asked_by not in (None, TRAINER) if stop is None else stop <= step:
                watched.run(capture.gate.close, False)
            elif asked_by == TRAINER:
                self._theirs[watched.session.name] = capture
        if running:
            await self.begin(step, late=True)
        else:
            self.end(step)
        self.gap()

    def gap(self, reason: str = _MISSED) -> None:
        """No step may have been heard since the last one, until the next that is; `reason` of the windows
        that are lost."""
        self._gap_since, self._gap_reason = self._step, reason

    def _after_gap(self, step: int) -> None:
        """What was open was so all the time; windows that came and went meanwhile are told of."""
        last, self._gap_since = self._gap_since, 0
        for watched in self._watched.values() if last else ():
            watched.run(watched.captures.not_heard, last + 1, step, self._gap_reason)

    async def begin(self, step: int, late: bool = False) -> None:
        """Step `step` begins: close what it is not in, open what it is in. Returns when all of that is
        open. `late`: it has begun before.
        """
        first, self._step = self._step == 0, step
        if self._closed:
            return
        self._after_gap(step)
        wanted, self._wanted = self._wanted, []
        if first or wanted or self.concerned(step):
            await self._look()
        opening = []
        for watched in self._watched.values():
            lives, quiet = watched.session.lives, watched.quiet(step)
            if lives:
                watched.reach(step)
            if watched.captures.any_open or (lives and not quiet):
                done = watched.run(watched.captures.enter, step, late)
                opening += [] if quiet else [done]
        self._entered = step
        self._phases = [told for told in self._phases if told[1] >= step]
        for told in self._phases:
            self._tell_phase(*told)
        await asyncio.gather(*opening)
        for request in wanted:
            window = Window(step, step + (request.next_steps or 1))
            await asyncio.gather(
                *(
                    watched.run(watched.open_steps, spec, window, request.id)
                    for watched, spec in await self._meant(request)
                )
            )

    def phase(self, step: int, name: str) -> None:
        """A phase of the driver's step begins."""
        self._phases.append((name, step, time.monotonic()))
        if self._entered == step:
            self._tell_phase(*self._phases[-1])

    def _tell_phase(self, name: str, step: int, at_s: float) -> None:
        for watched in () if self._closed else self._watched.values():
            if not watched.quiet(step):
                watched.run(watched.captures.tell_phase, name, step, at_s)

    def end(self, step: int) -> None:
        """Step `step` ended: close the windows of which it is the last step, beside the training."""
        if self._closed:
            return
        self._after_gap(step + 1)
        for watched in self._watched.values():
            if not watched.quiet(step):
                watched.run(watched.captures.leave, step, watched.session.lives)

    async def _look(self, ended: bool = False) -> None:
        """Find sessions that are new, or whose process has told who it is meanwhile; with `ended` those too
        whose process has come and gone since the last look.
        """
        sessions = await asyncio.to_thread(session_file.read_all, self._node_dir, ended=True)
        for session in filter(lambda session: ended or session.lives, sessions):
            known = self._watched.get(session.name)
            if known is not None and (known.session == session or known.captures.any_open):
                continue
            wanted = self._asked_of(session)
            if wanted and wanted[0].each != "phase":  # one process, one mode
                self._watch(session, wanted).reach(self._step if session.lives else session.began)
        for session in sessions:
            if session.gate != "supervisor":
                self._watched.pop(session.name, None)

    def _asked_of(self, session: Session) -> tuple[CaptureSpec, ...]:
        """What the request asks of a session whose process opens no windows itself. COMMAND only waits for
        the actors it created, where no adapter has given it a name.
        """
        if session.gate != "supervisor" or (session.worker == DRIVER and not self._names_the_driver):
            return ()
        return tuple(filter(_is_ours, self._request.for_worker(session.worker, session.rank)))

    def _fail_phases(self) -> None:
        """Say of phases' windows whose process has opened none why that is."""
        for session in session_file.read_all(self._node_dir, ended=True):
            for spec in self._asked_of(session):
                if spec.each == "phase":
                    watched = self._watched.get(session.name) or self._watch(session)
                    capture = watched.captures.add(spec)
                    for window in spec.windows():
                        if window.start <= self._step:
                            capture.delivery.failed(OpenWindow(window), capture.impossible)

    # ---- windows that somebody else asks for

    async def ask(self, name: str, what: str) -> bool:
        """Start or stop a window of one session now: the trainer's own profiler calls."""
        path = self._node_dir / session_file.FOLDER / f"{name}.json"
        session = await asyncio.to_thread(session_file.read, path)
        if session is not None and session.gate == "process":
            specs = self._request.for_worker(session.worker, session.rank) if self._request else ()
            if any(_is_ours(each) and each.each == "phase" for each in specs):
                return True  # its trainer's calls fall into windows that the process opens itself
        watched = self._watched.get(name)
        if watched is None:
            if session is None or self._closed:
                return False
            watched = self._watched.get(name) or self._watch(session)
        if self._closed:
            return what == "stop"
        if what == "stop":
            if opened := self._theirs.pop(name, None):
                watched.run(watched.close_now, opened)
            return True
        covered = await watched.run(lambda: watched.captures.any_open)  # not by one that is being closed
        if covered or name in self._theirs:
            return True
        watched.asked += 1
        step = self._step or watched.asked  # a trainer whose steps nobody tells: its windows are counted
        options, flags = nsys_options.split_flags(watched.session.options)
        asked = CaptureSpec(workers=(watched.session.worker,), options=options, flags=flags)
        opened = self._theirs[name] = watched.captures.add(asked, (), TRAINER, timed=True)
        await watched.run(watched.open_now, opened, Window(step, None))
        if opened.gate.current is None and self._theirs.get(name) is opened:
            del self._theirs[name]
            return False
        return True

    def want(self, request: CaptureRequest) -> None:
        """Open windows for `request` when the next step begins."""
        self._wanted.append(request)

    async def take_seconds(self, request: CaptureRequest) -> None:
        """Open windows now, and close them after the seconds that `request` asks for."""
        window = Window(max(1, self._step), None)
        meant = await self._meant(request)
        opened = [
            (watched, watched.captures.add(spec, (), request.id, timed=True)) for watched, spec in meant
        ]
        await asyncio.gather(*(watched.run(watched.open_now, capture, window) for watched, capture in opened))
        await asyncio.sleep(request.seconds or 0.0)
        for watched, capture in () if self._closed else opened:
            watched.run(watched.close_now, capture)

    async def _meant(self, request: CaptureRequest) -> list[tuple[WatchedSession, CaptureSpec]]:
        """Whose windows a capture on demand asks for."""
        if request.backend not in ("auto", nsys_options.NAME) or self._closed:
            return []
        spec = CaptureSpec(
            workers=request.workers,
            ranks=request.ranks,
            options=dict(request.options),
            flags=request.flags,
        )
        return [
            (self._watched.get(session.name) or self._watch(session), spec)
            for session in await asyncio.to_thread(session_file.read_all, self._node_dir)
            if session.gate == "supervisor" and spec.matches(session.worker, session.rank)
        ]

    # ---- the end

    async def close(self) -> None:
        """Close what is open and wait for the reports; nothing opens any more. Those who call bound it."""
        if self._closed:
            return
        if self._specs:  # those whose window never came are to be told of as well
            await self._look(ended=True)
        self._closed = True
        await asyncio.to_thread(self._fail_phases)
        ending = [watched.run(watched.end) for watched in self._watched.values()]
        await asyncio.gather(*ending, return_exceptions=True)
        await in_background(self._output_dir.finish, seconds=2 * output_dir.COPIES_S)


def _ours(request: ProfileRequest | None) -> tuple[CaptureSpec, ...]:
    return tuple(spec for spec in (request.captures if request else ()) if _is_ours(spec))


def _is_ours(spec: CaptureSpec) -> bool:
    return bool(spec) and spec.backend == nsys_options.NAME and nsys_options.capture_range(spec) is None
