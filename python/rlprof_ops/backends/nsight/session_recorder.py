"""A window of the nsys session that this process was launched in: `nsys start`, and `nsys stop` beside the
training.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from rlprof_ops.backends import OK
from rlprof_ops.backends.contract import CaptureError, Options
from rlprof_ops.backends.nsight import nsys_cli, nsys_process
from rlprof_ops.backends.nsight.node_turn import NodeTurn
from rlprof_ops.backends.nsight.nsys_options import samples_the_node
from rlprof_ops.backends.window_support import MAX_MB
from rlprof_ops.backends.window_timeouts import close_wait_s, open_wait_s
from rlprof_ops.host.log_line import log_once
from rlprof_ops.words import limit

# `nsys start` (2023.4) can return before the library it has put into this process collects: the first range
# of a window was lost on a busy machine, and once all of a window of 10 ms.
_SETTLE_S = 0.2
_LEAD_S, _LONGEST_LEAD_S = 0.45, 1.5
# It takes 0.13 s of processor time, most of it in the session's agent, which reads the kernel's symbols
# whatever was asked for (2023.4); the rest of a start is waiting for a processor.
_S_A_LOAD = 0.06  # of the load of each processor, by 64 starts at loads of 13 to 46 on two
_LIST_TIMEOUT_S = 10.0
GPU_METRICS_TURN = "gpu-metrics"
_NICE = 10
_STOPPED_BEFORE_S = 120.0  # for the `nsys stop` of a supervisor that was killed
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5  # between two listings, which take 20 ms each


class NsysSessionRecorder:
    """One window after another of one session. `open` and `close` raise `CaptureError`."""

    suffix = nsys_cli.SUFFIX

    def __init__(
        self, session: str, spec: Options, env: Mapping[str, str] | None = None, pid: int = 0
    ) -> None:
        """`env`: for the nsys commands, and `pid`, where this is not the session's own process."""
        self._pid = pid or os.getpid()
        self.most_bytes = float(spec.options.get(MAX_MB, 0)) * 1e6
        self._session = session
        self._spec = spec
        self._env = env
        self._target: Path | None = None
        self._metrics: NodeTurn | None = None
        self._adopted = False
        self._took_s: tuple[float, ...] = ()  # the last two starts
        self.collects_s = 0.0  # by the monotonic clock, since when the open window holds something

    @property
    def lead_s(self) -> float:
        """How long before it is to hold anything a window is to be opened now, in seconds.

        `nsys start` collects 0.1 to 0.26 s after its call where little else runs. Where both of the last two
        took longer it is called earlier by three quarters of the shorter: from half to the whole of that
        again is then less than half a second off, up to 2 s. One alone tells nothing: after 2.4 s came 0.2.
        """
        least_s = max(_LEAD_S, 0.75 * min(self._took_s) if len(self._took_s) == 2 else 0.0)
        with contextlib.suppress(OSError):  # nobody tells the load
            least_s = max(least_s, _S_A_LOAD * os.getloadavg()[0] / (os.cpu_count() or 1))
        return min(least_s, _LONGEST_LEAD_S)

    def open(self, target: Path) -> None:
        target = Path(os.path.abspath(target))  # nsys runs in another folder
        alone = samples_the_node(self._spec)
        self._metrics = NodeTurn.taken(GPU_METRICS_TURN) if alone else None
        mine = self._metrics is not None or not alone
        if not mine:
            log_once("GPU metrics of this node are in another rank's report: one session samples all GPUs")
        try:
            argv, called_s = nsys_cli.start_argv(self._session, target, self._spec, mine), time.monotonic()
            _nsys(argv, open_wait_s(), self._env)
        except BaseException:
            self._give_back()
            raise
        self._target, self.collects_s = target, time.monotonic()
        self._took_s = (*self._took_s[-1:], self.collects_s - called_s)
        time.sleep(_SETTLE_S)

    @property
    def scratch(self) -> tuple[Path, ...]:
        """Where nsys collects."""
        return (Path((self._env or os.environ).get("TMPDIR") or "/tmp"),)

    def size_bytes(self) -> int:
        """What nsys has collected of the open window: 2023.4 keeps it in files until it writes the report."""
        folder = self.scratch[0] / "nvidia" / "nsight_systems"
        with contextlib.suppress(OSError):
            for mine in folder.glob(f"quadd_session_*/injection_files/injection_{self._pid}_*"):
                return sum(path.stat().st_size for path in mine.parent.glob("*_storage.dat"))
        return 0

    def adopt(self, target: Path) -> None:
        """Take a window for open that somebody before has opened, who is gone."""
        self._target, self._adopted = target, True

    def entered(self, step: int) -> None:
        pass

    def close(self) -> StoppingSession:
        target, self._target = self._target, None
        adopted, self._adopted = self._adopted, False
        if target is None:
            raise CaptureError("the nsys window was not open")
        try:
            return StoppingSession(self._session, target, self._env, adopted)
        finally:
            self._give_back()

    def _give_back(self) -> None:
        turn, self._metrics = self._metrics, None
        if turn is not None:
            turn.give_back()


class StoppingSession:
    """A running `nsys stop`. When the constructor returns nothing more enters the report; `wait` gives it.

    nsys takes in data for the first 0.03 to 0.1 s of a stop, which `nsys sessions list` shows as
    "Collection"; then it fetches what it has and writes the report, for 0.6 s up to minutes, and the training
    need not wait for that.
    """

    def __init__(
        self, session: str, target: Path, env: Mapping[str, str] | None = None, adopted: bool = False
    ) -> None:
        """`adopted`: somebody before, who was killed, may have begun to stop it."""
        self._session = session
        self._target = target
        self._env = env
        self._others_may_stop_s = _STOPPED_BEFORE_S if adopted else 0.0
        self._running = _Command(nsys_cli.stop_argv(session), env)
        self.note = ""  # what the manifest says of the report
        began, pause_s, most_s = time.monotonic(), _FIRST_PAUSE_S, close_wait_s()
        until = began + most_s
        while self._running.alive and self._collecting(until):
            if time.monotonic() >= until:  # NCCL's watchdog ends a training that waits for 600 s
                self.note = (
                    f"nsys had not closed the window after {limit(most_s)} (RLPROF_CLOSE_WAIT_SECONDS):"
                    " training went on, and later work may be in the report"
                )
                log_once(f"{session}: {self.note}")
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._running.yield_to_training()

    def wait(self) -> Path:
        """Raises `CaptureError`."""
        target = self._target
        try:
            stdout = self._running.finish(nsys_cli.STOP_TIMEOUT_S)
        except CaptureError:
            # Another may have closed the session before us, as the node's drain does: then the report is
            # there, or comes.
            until = time.monotonic() + self._others_may_stop_s
            while nsys_cli.check(target).state != OK:
                if time.monotonic() >= until:
                    raise
                time.sleep(_LONGEST_PAUSE_S)
            return target
        said = nsys_cli.generated_path(stdout)
        report = target if target.is_file() else Path(said) if said else None
        raw = Path(nsys_cli.generated_path(stdout, nsys_cli.RAW_SUFFIX) or os.devnull)
        if raw.is_file():
            if report is None or nsys_cli.check(report).state != OK:
                return self._imported(raw)
            raw.unlink()  # the importer failed when it had written all of the report
        if report is not None and report.is_file():
            return report
        raise CaptureError(
            f"`nsys stop` ended but wrote no report: {_last_line(stdout) or 'it said nothing'}"
        )

    def _imported(self, raw: Path) -> Path:
        """nsys's own import failed, which leaves the raw capture: once more. What fails again is the
        drain's to recover.
        """
        importer = nsys_cli.find_importer()
        if importer is None:
            raise CaptureError(
                f"`nsys stop` left a raw capture, {raw.name}, and QdstrmImporter is not installed beside nsys"
            )
        try:
            _Command(nsys_cli.import_argv(importer, raw, self._target), self._env).finish(
                nsys_cli.STOP_TIMEOUT_S
            )
        except CaptureError:
            self._target.unlink(
                missing_ok=True
            )  # half of it, which the drain would take for a report beside the raw capture's
            raise
        if not self._target.is_file():
            raise CaptureError(
                f"`nsys stop` left a raw capture, {raw.name}, and QdstrmImporter wrote no report"
            )
        raw.unlink()
        return self._target

    def _collecting(self, until: float) -> bool:
        """Whether more may still enter the report: yes, until nsys says otherwise or has ended."""
        left_s = max(0.05, until - time.monotonic())
        try:
            states = nsys_cli.session_states(
                _nsys(nsys_cli.list_argv(), min(_LIST_TIMEOUT_S, left_s), self._env)
            )
            state = states.get(self._session)
        except CaptureError:
            state = None
        if state is None:  # no listing, or one that we cannot read: asking more often tells nothing
            self._running.join(max(0.0, until - time.monotonic()))
            return self._running.alive
        return state in nsys_cli.COLLECTING


class _Command:
    """One nsys command of the session. The environment is ours without nsys's own injection."""

    def __init__(self, argv: list[str], env: Mapping[str, str] | None = None) -> None:
        tool = os.path.basename(argv[0])
        self._what = "QdstrmImporter" if tool == "QdstrmImporter" else f"`nsys {argv[1]}`"
        try:
            self._process = nsys_process.start(argv, env=env, stderr=subprocess.PIPE)
        except FileNotFoundError:
            raise CaptureError(f"{self._what}: no nsys at {argv[0]!r} (set RLPROF_NSYS or PATH)") from None
        except OSError as error:
            raise CaptureError(f"{self._what}: {error.strerror or error}") from None

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def yield_to_training(self) -> None:
        """From now on it and the importer that it starts take what processor time the training leaves."""
        with contextlib.suppress(OSError):  # it has ended
            mine = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PGRP, self._process.pid, max(mine, _NICE))

    def join(self, timeout_s: float) -> None:
        """Wait without reading; nsys says far less than a pipe holds."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return

    def finish(self, timeout_s: float) -> str:
        """What it said, when it has ended well. Raises `CaptureError`."""
        process = self._process
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            nsys_process.end_group(process)
            raise CaptureError(f"{self._what} did not return within {limit(timeout_s)}") from None
        if process.returncode != 0:
            said = _last_line(stderr) or _last_line(stdout) or "it said nothing"
            raise CaptureError(f"{self._what} failed with exit code {process.returncode}: {said}")
        return stdout


def _nsys(argv: list[str], timeout_s: float, env: Mapping[str, str] | None = None) -> str:
    return _Command(argv, env).finish(timeout_s)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[:500]
