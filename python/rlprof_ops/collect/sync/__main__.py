"""The sync process of one node: `python -m rlprof_ops.collect.sync`, started and ended by the node
supervisor.

SIGTERM (or the parent's death) means: one last pass, then exit 0, or 1 when something stayed behind. SIGUSR1:
a pass now.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import resource
import signal
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from rlprof_ops.collect.sync.evict import make_room
from rlprof_ops.collect.sync.live_logs import LiveLogs
from rlprof_ops.collect.sync.sync_pass import PassReport, Syncer
from rlprof_ops.env_names import KEEP_FREE_MIB
from rlprof_ops.errors import EXIT_FAILED, EXIT_USAGE, UsageError
from rlprof_ops.host import foreign
from rlprof_ops.host.contained_dir import ContainedDir, UnsafeName
from rlprof_ops.host.foreign import reason_of
from rlprof_ops.window.room import kept_bytes
from rlprof_ops.words import counted, duration, limit, size

if TYPE_CHECKING:
    from rlprof_ops.job.knobs import Settings
    from rlprof_ops.job.node_context import NodeContext

__all__ = ["PassReport", "Syncer", "main", "parse_interval"]

LOG = logging.getLogger(__name__)
_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})
_LOOK_AT_PARENT_S = 5.0
_BACKOFF_LIMIT_S = 300.0
_RETRY_LAST_S = 2.0
_LIVE_S = 1.0
_OPEN_FILES = 4096


def parse_interval(text: str) -> int:
    """Seconds between passes; 0 is "only the last pass". Raises `UsageError` for anything but a whole
    number from 0 on.
    """
    if not (text.isascii() and text.isdigit()) or int(text) > 86_400:
        raise UsageError(
            f"RAY_LOG_SYNC_FREQUENCY is {text!r}; it must be a whole number of seconds from 1 to 86400, "
            "or 0 to copy only once at the end"
        )
    return int(text)


def jitter_s(node: str, interval_s: int) -> float:
    """When a node makes its first pass: spread over one interval by its name, so that nodes do not hit
    storage together.
    """
    return (zlib.crc32(node.encode()) % 1000) / 1000 * interval_s


def sync_command(place: NodeContext, settings: Settings) -> list[str]:
    """The command line of one node's sync, by the job's knobs."""
    return [
        sys.executable,
        "-m",
        "rlprof_ops.collect.sync",
        f"--node-dir={place.folder.path}",
        f"--run-dir={place.run.path}",
        f"--node={place.node}",
        f"--nodes={len(place.nodes)}",
        f"--interval={settings['RAY_LOG_SYNC_FREQUENCY']}",
        f"--deadline={settings.number('RLPROF_DRAIN_SECONDS') / 2}",
        f"--parallel={settings['RLPROF_SYNC_PARALLEL']}",
        f"--bandwidth-mib={settings['RLPROF_SYNC_BANDWIDTH_MIB']}",
        *([f"--keep-free-mib={settings[KEEP_FREE_MIB]}"] if settings[KEEP_FREE_MIB] else []),
    ]


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rlprof_ops.collect.sync", description=__doc__)
    parser.add_argument("--node-dir", required=True, help="RLPROF_NODE_DIR of this job on this node")
    parser.add_argument("--run-dir", required=True, help="RLPROF_RUN_DIR on shared storage; must exist")
    parser.add_argument("--node", required=True, help="this node's name, RLPROF_NODE")
    parser.add_argument("--nodes", type=int, default=1, help="how many the job has (default 1)")
    parser.add_argument("--interval", default="30", help="seconds between passes; 0: only the last pass")
    parser.add_argument(
        "--deadline", type=float, default=60.0, help="seconds the last pass may take (default 60)"
    )
    parser.add_argument("--last", action="store_true", help="make the last pass now and exit")
    parser.add_argument("--parallel", type=int, default=4, help="files copied at once (default 4)")
    parser.add_argument(
        "--bandwidth-mib", type=float, default=0.0, help="MiB a second before the last pass; 0: no limit"
    )
    parser.add_argument(
        "--keep-free-mib",
        type=int,
        metavar="MIB",
        help=(
            "when the node has less free space, remove reports whose copy was read back and matches; 0:"
            " never; default: 1024, of a file system of less than 10 GiB a tenth"
        ),
    )
    return parser.parse_args(argv)


class _Control:
    """What the signals have asked for so far."""

    def __init__(self) -> None:
        self.parent = os.getppid()
        self.ending = False
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        # Slurm gives the notice of a time limit to every process of a step.
        for number in (signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Wait for a signal at most `timeout_s`; True when a pass was asked for or the end has come."""
        until = time.monotonic() + timeout_s
        while not self.ending:
            left = max(0.0, until - time.monotonic())
            got = signal.sigtimedwait(_SIGNALS, min(left, _LOOK_AT_PARENT_S))
            if got is not None and got.si_signo == signal.SIGUSR1:
                return True
            if got is not None or os.getppid() != self.parent:
                self.ending = True
            elif left <= 0:
                return False
        return True

    def should_stop(self) -> bool:
        """Whether the pass under way must make room for the last one."""
        if not self.ending and not (signal.sigpending() & {signal.SIGTERM, signal.SIGINT}):
            return False
        return not self.in_last_pass

    in_last_pass = False


def log_to_output() -> None:
    """Say what the sync does on standard output, each line with its time (UTC)."""
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(asctime)s sync: %(message)s", datefmt="%H:%M:%S"
    )


def main(argv: list[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    arguments = _arguments(argv)
    log_to_output()
    with contextlib.suppress(OSError, ValueError):  # the copies of logs stay open
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < _OPEN_FILES and (hard == resource.RLIM_INFINITY or hard >= _OPEN_FILES):
            resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, hard))
    try:
        interval_s = parse_interval(arguments.interval)
        control = _Control()
        syncer = Syncer(
            arguments.node_dir,
            arguments.run_dir,
            arguments.node,
            parallel=arguments.parallel,
            bytes_per_s=arguments.bandwidth_mib * 2**20,
            stop=control.should_stop,
            log=LOG.info,
            nodes=arguments.nodes,
        )
    except (UsageError, UnsafeName, OSError) as error:
        print(f"sync: {error}", file=sys.stderr)
        return EXIT_USAGE
    if not arguments.last:
        _run(syncer, control, arguments.node, interval_s, arguments.keep_free_mib)
    control.in_last_pass = True
    report = last_pass(syncer, read_deadline(syncer.node_dir) or arguments.deadline)
    record_pass(syncer.node_dir, report)
    syncer.close()
    return 0 if report.complete else EXIT_FAILED


def _run(syncer: Syncer, control: _Control, node: str, interval_s: int, keep_free_mib: int | None) -> None:
    """Passes until the end is asked for; a storage in trouble is asked less and less often."""
    wait_s: float = jitter_s(node, interval_s)
    trouble = ""
    live = LiveLogs(syncer.node_dir, syncer.run_dir, LOG.info, syncer.sender.secrets)
    while True:
        if not _wait(control, live, wait_s if interval_s else 86_400.0):
            live.close()
            return
        report = syncer.pass_()
        record_pass(syncer.node_dir, report)
        with contextlib.suppress(OSError):  # of a node folder that is gone
            kept = kept_bytes(syncer.node_dir, keep_free_mib)
            for path in make_room(syncer.node_dir, syncer.run_dir, syncer.journal, kept, control.should_stop):
                LOG.info(f"node is short of space: removed {path!r}, its copy was read back and matches")
        if report.target_error:
            wait_s = min(_BACKOFF_LIMIT_S, max(wait_s, interval_s, 1.0) * 2)
            if report.target_error != trouble:
                LOG.info(
                    f"storage in trouble, next try in {limit(wait_s)}, files stay on the node:"
                    f" {report.target_error}"
                )
        else:
            wait_s = float(interval_s)
            if trouble:
                LOG.info("storage answers again")
        trouble = report.target_error or ""


def _wait(control: _Control, live: LiveLogs, seconds: float) -> bool:
    """Wait for the next pass, looking after live logs; False when the end is asked for."""
    until = time.monotonic() + seconds
    while not control.ending:
        live.look()
        left = until - time.monotonic()
        asked = control.poll(max(0.0, min(_LIVE_S, left)))
        if (asked or left <= _LIVE_S) and not control.ending:
            return True
    return False


def last_pass(syncer: Syncer, deadline_s: float) -> PassReport:
    """The last pass, repeated within `deadline_s` while storage fails; without a bandwidth limit."""
    until = time.monotonic() + deadline_s
    syncer.limiter.bytes_per_s = 0
    while True:
        report = syncer.pass_(last=True, deadline=until)
        if report.complete or time.monotonic() + _RETRY_LAST_S >= until:
            break
        time.sleep(_RETRY_LAST_S)
    LOG.info(
        f"last pass: {counted(report.copied, 'file')}, {size(report.copied_bytes)} in"
        f" {duration(report.seconds * 1e9)}, {len(report.failed)} failed"
        + (f", storage: {report.target_error}" if report.target_error else "")
    )
    for path, reason in report.failed[:20]:
        LOG.info(f"not copied: {path!r}: {reason}")
    return report


def read_report(node_dir: str | os.PathLike[str]) -> PassReport | None:
    """The report of the sync process's latest pass on this node; None when there was none."""
    try:
        with ContainedDir(node_dir) as folder:
            values = foreign.parse(folder.read("sync/report.json", foreign.MOST_BYTES))
        return foreign.typed(values, PassReport)
    except (OSError, ValueError):
        return None


def write_deadline(node_dir: str | os.PathLike[str], seconds: float) -> None:
    """How long the sync's last pass may take, for the sync process that is told to make it next."""
    try:
        with ContainedDir(node_dir) as folder:
            folder.write_atomic("sync/deadline", f"{max(1.0, seconds):.1f}".encode())
    except OSError as error:
        LOG.warning(f"cannot write {node_dir}/sync/deadline: {reason_of(error)}")


def read_deadline(node_dir: str | os.PathLike[str]) -> float | None:
    """What `write_deadline` wrote last; None when nothing was."""
    try:
        with ContainedDir(node_dir) as folder:
            return float(folder.read("sync/deadline", 100))
    except (OSError, ValueError):
        return None


def record_pass(node_dir: Path, report: PassReport) -> None:
    """Keep what a pass did for `read_report`."""
    try:
        with ContainedDir(node_dir) as folder:
            folder.write_atomic("sync/report.json", json.dumps(report.__dict__).encode())
    except OSError as error:
        LOG.warning(f"cannot write {node_dir}/sync/report.json: {reason_of(error)}")


if __name__ == "__main__":
    sys.exit(main())
