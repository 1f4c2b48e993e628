"""Windows of this node's nsys sessions, opened and closed by its supervisor at the job's steps.

For processes that know no step: each was started under `nsys launch` and left a session file. Children of
such a process are inside its session. Every window ends as a report under its final name, and as events like
those of a process that has our runtime, so that harvest reads both alike.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlprof_ops import backends
from rlprof_ops.backends import Where
from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.backends.nsight import options as nsys_options
from rlprof_ops.backends.nsight.recorder import NsysSessionRecorder
from rlprof_ops.backends.window_support import driver_of
from rlprof_ops.host.background import in_background
from rlprof_ops.request import CaptureSpec, ProfileRequest, Window
from rlprof_ops.request.steps import window_at
from rlprof_ops.runtime.capture_error import CaptureError
from rlprof_ops.runtime.on_demand.watcher import CaptureRequest
from rlprof_ops.runtime.process import session_file
from rlprof_ops.runtime.process.session_file import Session
from rlprof_ops.runtime.process.worker_identity import DRIVER
from rlprof_ops.supervisor.steps import left_open
from rlprof_ops.supervisor.steps.watched_session import SessionWindow, WatchedSession
from rlprof_ops.window import output_dir
from rlprof_ops.window.delivery import Delivery
from rlprof_ops.window.gate import OpenWindow
from rlprof_ops.window.output_dir import OutputDir
from rlprof_ops.window.reason import reason_of

TRAINER = "trainer"  # who asks for the windows of a trainer's own profiler calls
_MISSED = "no supervisor heard its steps: this node's or the head's was killed, and another one took over"
_STOP_BEFORE_S, _LOOK_S = 120.0, 0.2  # for the `nsys stop` of a supervisor that was killed
_AT_ONCE = 16  # nsys commands beside each other; each is a short process of its own


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
        self._names_the_driver = any(DRIVER in spec.workers for spec in self._specs)
        self._say = say
        self._watched: dict[str, WatchedSession] = {}
        self._phased: dict[str, tuple[Session, tuple[CaptureSpec, ...]]] = {}  # whose process is to open them
        self._step = 0
        self._closed = False
        self._wanted: list[CaptureRequest] = []
        self._gap_since = 0  # the step after which some may not have been heard
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="rlprof-nsys")

    def take(self, request: ProfileRequest) -> bool:
        """Go by `request` from now on, unless the job was asked for something itself."""
        if self._request:
            return False
        self._request, self._specs = request, _ours(request)
        self._output_dir.folders = output_dir.folder_of(request, self._cwd)
        return True

    def _watch(self, session: Session, specs: tuple[CaptureSpec, ...] = ()) -> WatchedSession:
        watched = WatchedSession(session, self._node_dir, specs, self._output_dir, self._say)
        self._watched[session.name] = watched
        return watched

    def concerned(self, step: int) -> bool:
        """Whether a window holds `step`, or one is open that does not."""
        return any(window_at(spec.windows(), step) for spec in self._specs) or any(
            watched.open is not None for watched in self._watched.values()
        )

    async def resume(self, step: int, running: bool) -> None:
        """Go on with the windows of a supervisor that was killed in step `step`; `running`: it has not ended.

        What was open stays open as long as its window lasts; what should be is opened.
        """
        self._step = step
        await self._look()
        for session in await asyncio.to_thread(session_file.read_all, self._node_dir, ended=True):
            if session.name not in self._watched and left_open.has_events(self._node_dir, session):
                self._watch(session)
        for watched in self._watched.values():
            left = await asyncio.to_thread(left_open.read, watched.events.path)
            watched.take(left.begun)
            watched.asked = left.asked
            watched.reach(step)
            if left.window is not None:
                self._adopt(watched, left.window)
        if running:
            await self.begin(step)
            for watched in self._watched.values():
                if watched.open is not None and not watched.open.adopted:
                    watched.open.late = True
        else:
            self.end(step)
        self.gap()

    def _adopt(self, watched: WatchedSession, left: left_open.LeftOpen) -> None:
        session, window = watched.session, Window(left.start, left.stop)
        spec = watched.spec_of(window) or CaptureSpec(workers=(session.worker,))
        recorder = NsysSessionRecorder(session.name, spec, {**os.environ, "TMPDIR": session.tmpdir})
        target = self._node_dir / "tmp" / left.report
        recorder.adopt(target)
        stop = self._step + 1 if window.stop is None else min(window.stop, self._step + 1)
        seen = list(range(window.start, stop))
        watched.open = SessionWindow(
            window, None, seen, left.asked_by, spec=spec, recorder=recorder, target=target, adopted=True
        )
        watched.open.ready.set()
        # Who counted the seconds of a capture on demand is gone.
        over = left.asked_by != TRAINER if window.stop is None else window.stop <= self._step
        if over:
            self._close(watched, partial=False)

    def gap(self) -> None:
        """No step may have been heard since the last one, until the next that is."""
        self._gap_since = self._step

    def _after_gap(self, step: int) -> None:
        """What was open was so all the time; windows that came and went meanwhile are told of."""
        last, self._gap_since = self._gap_since, 0
        for watched in self._watched.values() if last else ():
            if watched.open is not None:
                through = watched.open.window.stop or step
                watched.open.seen += range(last + 1, min(step, through))
            for missed in range(last + 1, step):
                for number, spec in enumerate(watched.specs):
                    window = window_at(spec.windows(), missed)
                    if window is None or step in window or (number, window.start) in watched.taken:
                        continue
                    watched.taken.add((number, window.start))
                    watched.delivery.failed(OpenWindow(window), _MISSED)

    async def begin(self, step: int) -> None:
        """Step `step` begins: close what it is not in, open what it is in. Returns when all of that is
        open."""
        first, self._step = self._step == 0, step
        if self._closed:
            return
        self._after_gap(step)
        for watched in self._watched.values():
            if watched.session.lives:
                watched.reach(step)
            if watched.open is not None and step not in watched.open.window:
                self._close(watched, partial=not watched.open.complete)
        wanted, self._wanted = self._wanted, []
        if not first and not wanted and not self.concerned(step):
            return
        await self._look()
        opening = [self._begin_one(watched, step) for watched in self._watched.values()]
        await asyncio.gather(*opening)
        for demand in wanted:
            window = Window(step, step + (demand.next_steps or 1))
            await self._open_demanded(demand, window)

    def end(self, step: int) -> None:
        """Step `step` ended: close the windows of which it is the last step, beside the training."""
        self._after_gap(step + 1)
        for watched in self._watched.values():
            current = watched.open
            if current is not None and current.window.stop == step + 1:
                self._close(watched, partial=not current.complete)

    async def _look(self, ended: bool = False) -> None:
        """Find sessions that are new, or whose process has told who it is meanwhile; with `ended` those too
        whose process has come and gone since the last look.
        """
        sessions = await asyncio.to_thread(session_file.read_all, self._node_dir, ended=True)
        for session in filter(lambda session: ended or session.lives, sessions):
            known = self._watched.get(session.name)
            if session.gate != "supervisor" or (known is not None and known.session == session):
                continue
            if known is not None and known.open is not None:
                continue
            if session.worker == DRIVER and not self._names_the_driver:
                continue  # no adapter has given it a name: COMMAND only waits for the actors it created
            wanted = self._request.for_worker(session.worker, session.rank)
            wanted = tuple(spec for spec in wanted if _is_ours(spec))
            if wanted and wanted[0].each == "phase":  # one process, one mode
                self._phased[session.name] = session, wanted
            elif wanted:
                self._watch(session, wanted).reach(self._step if session.lives else session.began)
        gone = {session.name for session in sessions if session.gate != "supervisor"}
        for name in gone:
            self._watched.pop(name, None)
            self._phased.pop(name, None)

    def _asks_for_phases(self, session: Session) -> bool:
        wanted = self._request.for_worker(session.worker, session.rank) if self._request else ()
        return any(_is_ours(spec) and spec.each == "phase" for spec in wanted)

    def _fail_phases(self) -> None:
        """Say of phases' windows whose process has opened none why that is."""
        for session, specs in self._phased.values():
            watched = self._watched.get(session.name) or self._watch(session)
            for window in (window for spec in specs for window in spec.windows()):
                if window.start <= self._step:
                    watched.delivery.failed(OpenWindow(window), nsys_options.PHASES_NEED)

    async def _begin_one(self, watched: WatchedSession, step: int) -> None:
        session = watched.session
        if watched.open is not None:
            watched.open.seen.append(step)
            await watched.open.ready.wait()
            return
        for number, spec in enumerate(watched.specs):
            window = window_at(spec.windows(), step)
            if window is None or (number, window.start) in watched.taken or not session.lives:
                continue
            watched.taken.add((number, window.start))
            await self._open(watched, spec, window, [step])
            return

    async def _open(
        self,
        watched: WatchedSession,
        spec: CaptureSpec,
        window: Window,
        seen: list[int],
        asked_by: str | None = None,
    ) -> bool:
        session = watched.session
        recorder = NsysSessionRecorder(session.name, spec, {**os.environ, "TMPDIR": session.tmpdir})
        current = SessionWindow(window, None, seen, asked_by, spec=spec, recorder=recorder)
        watched.open = current
        try:
            if (
                watched.closing is not None
            ):  # a session that still writes its last window cannot open the next
                await asyncio.shield(watched.closing)
            current.target = watched.delivery.target(current)
            await self._in_thread(recorder.open, current.target)
        except Exception as error:
            watched.open = None
            current.ready.set()
            watched.delivery.failed(current, reason_of(error))
            return False
        watched.delivery.opened(current)
        current.ready.set()
        return True

    def _close(self, watched: WatchedSession, partial: bool) -> None:
        current, watched.open = watched.open, None
        if current is not None:
            watched.closing = asyncio.get_running_loop().create_task(self._finish(watched, current, partial))

    async def _finish(self, watched: WatchedSession, current: SessionWindow, partial: bool) -> None:
        await current.ready.wait()
        current.name_by_seen()
        await self._in_thread(_finish, watched.delivery, current, partial or current.late)

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    # ---- windows that somebody else asks for

    async def ask(
        self, name: str, what: str, asked_by: str = TRAINER, spec: CaptureSpec | None = None
    ) -> bool:
        """Start or stop a window of one session now: the trainer's own profiler calls, `rlprof capture`."""
        path = self._node_dir / session_file.FOLDER / f"{name}.json"
        session = await asyncio.to_thread(session_file.read, path)
        if session is not None and session.gate == "process" and self._asks_for_phases(session):
            return True  # its trainer's calls fall into windows that the process opens itself
        watched = self._watched.get(name)
        if watched is None:
            if session is None or self._closed:
                return False
            watched = self._watched.get(name) or self._watch(session)
        if what == "stop":
            if watched.open is not None and watched.open.asked_by == asked_by:
                self._close(watched, partial=False)
            return True
        if watched.open is not None or self._closed:
            return watched.open is not None
        watched.asked += 1
        step = self._step or watched.asked  # a trainer whose steps nobody tells: its windows are counted
        asked = spec or CaptureSpec(workers=(watched.session.worker,))
        return await self._open(watched, asked, Window(step, None), [step], asked_by)

    def want(self, demand: CaptureRequest) -> None:
        """Open windows for `demand` when the next step begins."""
        self._wanted.append(demand)

    async def take_seconds(self, demand: CaptureRequest) -> None:
        """Open windows now, and close them after the seconds that `demand` asks for."""
        opened = await self._open_demanded(demand, Window(max(1, self._step), None))
        await asyncio.sleep(demand.seconds or 0.0)
        for watched in opened:
            if watched.open is not None and watched.open.asked_by == demand.id:
                self._close(watched, partial=False)

    async def _open_demanded(self, demand: CaptureRequest, window: Window) -> list[WatchedSession]:
        if demand.backend not in ("auto", "nsight") or self._closed:
            return []
        spec = CaptureSpec(workers=demand.workers, ranks=demand.ranks, options=dict(demand.options))
        where = Where(driver=driver_of(demand.id))
        refused = "; ".join(backends.validate(spec, where).errors)
        found: list[WatchedSession] = []
        for session in await asyncio.to_thread(session_file.read_all, self._node_dir):
            if session.gate != "supervisor" or not spec.matches(session.worker, session.rank):
                continue
            watched = self._watched.get(session.name) or self._watch(session)
            if refused or watched.open is not None:
                other = OpenWindow(window, asked_by=demand.id)
                watched.delivery.failed(other, refused or "another nsight window is open there")
            else:
                found.append(watched)
        seen = [window.start] if self._step else []
        await asyncio.gather(*(self._open(each, spec, window, list(seen), demand.id) for each in found))
        return [watched for watched in found if watched.open is not None]

    # ---- the end

    async def close(self) -> None:
        """Close what is open and wait for the reports; nothing opens any more. Those who call bound it."""
        if self._closed:
            return
        if self._specs:  # those whose window never came are to be told of as well
            await self._look(ended=True)
        self._closed = True
        await self._in_thread(self._fail_phases)
        for watched in self._watched.values():
            current = watched.open
            if current is not None:
                self._close(watched, partial=current.window.stop is not None and current.asked_by is None)
        tasks = [watched.closing for watched in self._watched.values() if watched.closing is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        for watched in self._watched.values():
            watched.events.write("ended", last_step=watched.reached or None)
        self._threads.shutdown(wait=False)
        await in_background(self._output_dir.finish, seconds=2 * output_dir.COPIES_S)


def _finish(delivery: Delivery, current: SessionWindow, partial: bool) -> None:
    """End the recording, wait for its report, and put it where it belongs."""
    try:
        finished, note = _stopped(current)
        delivery.closed(current, finished, partial, note)
    except Exception as error:
        delivery.failed(current, reason_of(error))


def _stopped(current: SessionWindow) -> tuple[Path, str]:
    """The report, once nsys has written it, and what the manifest says of it. Raises CaptureError."""
    try:
        stopping = current.recorder.close()
        return stopping.wait(), stopping.note
    except CaptureError:
        until = time.monotonic() + _STOP_BEFORE_S
        while current.adopted and time.monotonic() < until:
            if nsys_cli.check(current.target).state == "ok":  # the one before had begun to stop it
                return current.target, ""
            time.sleep(_LOOK_S)
        raise


def _ours(request: ProfileRequest | None) -> tuple[CaptureSpec, ...]:
    return tuple(spec for spec in (request.captures if request else ()) if _is_ours(spec))


def _is_ours(spec: CaptureSpec) -> bool:
    return bool(spec) and spec.backend == "nsight" and nsys_options.capture_range(spec) is None
