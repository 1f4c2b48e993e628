"""`python -m rlprof_ops.analyze.distil`: reads one node's finished reports, one at a time, started and ended
by the node's supervisor.

A report's columns (readers/cache.py) come to lie beside it in the node folder, from where the sync brings
them first, for they are small. SIGTERM, or the parent's death, ends it at once; what is not distilled then is
read later, as ever.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from rlprof_ops.analyze.distil import one
from rlprof_ops.backends import report_names
from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.collect import event_logs
from rlprof_ops.collect.sync.sent_log import Sent, SentLog
from rlprof_ops.errors import RlprofError
from rlprof_ops.host.contained_dir import ContainedDir, UnsafeName
from rlprof_ops.redact import binary_files, kept_secrets, own_secrets
from rlprof_ops.words import duration, size

LOG = logging.getLogger(__name__)
LOOK_S = 2.0
NEEDS = ("msgspec", "numpy", "pyarrow")
TRACES = (".pt.trace.json.gz", ".pt.trace.json", ".json.gz")
_MEMORY = ".host-memory.json.gz"
_LEAST_BYTES = 256 << 10  # a smaller trace is read as fast as its columns are
_ROOM = 12  # times a report's size that must be free on the node: an export is several times its report
_LEAST_FREE_BYTES = 1 << 30
_TRIES = 2
_WORK = ".distil"  # below a dot nothing counts as a report that has to come home


Key = tuple[str, int, int, int]  # path, size, mtime and inode of a report


class Distiller:
    """The reports of one node folder; `memory_mib` is what reading one may take."""

    def __init__(self, node_dir: Path, memory_mib: int) -> None:
        self.node_dir, self._memory_mib = node_dir, memory_mib
        self._tries: dict[Key, int] = {}
        self._secrets = own_secrets()
        self._running: BaseProcess | None = None
        self._work = node_dir / _WORK
        self._made: dict[str, str] = {}  # path -> SHA-256 of what was read, until the sync has sent the same

    def look(self) -> bool:
        """Distil the next report, if there is one and no window is open on this node; whether it did."""
        todo = next(self._todo(), None)
        if todo is None or self._capturing():
            return False
        path, found = todo
        self._tries[_key(path, found)] = self._tries.get(_key(path, found), 0) + 1
        free = os.statvfs(self.node_dir)
        free_bytes = free.f_bavail * free.f_frsize
        if free_bytes < max(_ROOM * found.st_size, _LEAST_FREE_BYTES):
            LOG.info(f"{path!r} is not distilled: the node has {size(free_bytes)} left")
            return True
        begun = time.monotonic()
        code = self._distil(path, found, free_bytes // 2)
        took = duration((time.monotonic() - begun) * 1e9)
        LOG.info(f"{path!r}, {size(found.st_size)}: " + (f"ended with {code} after {took}" if code else took))
        return True

    def _todo(self) -> Iterator[tuple[str, os.stat_result]]:
        """Reports without columns beside them, the smallest first; and those that the sync has sent
        otherwise than they were read, since it knew of more secrets.
        """
        with ContainedDir(self.node_dir) as tree:
            files = dict(tree.files("profiles"))
        otherwise = self._sent_otherwise()
        for path, found in sorted(files.items(), key=lambda item: item[1].st_size):
            folder, _, name = path.rpartition("/")
            if (
                _is_worth_it(name, found.st_size)
                and (path in otherwise or f"{folder}/{report_names.columns_of(name)}" not in files)
                and self._tries.get(_key(path, found), 0) < _TRIES
            ):
                yield path, found

    def _sent_otherwise(self) -> set[str]:
        sent = self._sent() if self._made else {}
        arrived = {path: sent[path].sha256 for path in self._made if path in sent}
        otherwise = {path for path, digest in arrived.items() if digest and digest != self._made[path]}
        for path in arrived.keys() - otherwise:
            del self._made[path]
        return otherwise

    def _sent(self) -> dict[str, Sent]:
        return SentLog(self.node_dir / "sync" / "state.jsonl", read_only=True).sent

    def _capturing(self) -> bool:
        """Whether a process of this node has a window open now, which this work would show up in."""
        return any(
            Path(f"/proc/{log.pid}").exists()
            for log, _ in event_logs.unclosed(event_logs.read_node(self.node_dir / "events"))
        )

    def _distil(self, path: str, found: os.stat_result, most_file_bytes: int) -> int | None:
        """The exit code of the process that reads it: what one report takes is given back whole."""
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(mode=0o700)
        kept = kept_secrets.read(self.node_dir / "sync")
        self._secrets |= kept | binary_files.secrets_of_processes()
        sent = self._sent().get(path)
        as_sent = sent is not None and sent.same_source(found)  # which means without secrets
        secrets = frozenset() if as_sent else binary_files.maskable(self._secrets)
        # fork: the secrets are in no command line, and what is imported is so in the child alone
        forking = multiprocessing.get_context("fork")
        said, say = forking.Pipe(duplex=False)
        arguments = (self.node_dir, path, self._work, secrets, self._memory_mib, most_file_bytes, say)
        process = forking.Process(target=_in_child, args=arguments)
        process.start()
        self._running = process
        process.join()
        self._running = None
        if said.poll():
            self._made[path] = str(said.recv())
        said.close()
        say.close()
        shutil.rmtree(self._work, ignore_errors=True)
        return process.exitcode

    def end(self) -> None:
        """End the report under way, and what it has started."""
        if self._running is not None and self._running.is_alive():
            self._running.terminate()
            self._running.join(2)
            if self._running.is_alive():
                self._running.kill()
                self._running.join(1)
        shutil.rmtree(self._work, ignore_errors=True)


def _key(path: str, found: os.stat_result) -> Key:
    return path, found.st_size, found.st_mtime_ns, found.st_ino


def _is_worth_it(name: str, size_bytes: int) -> bool:
    if name.startswith(".") or not size_bytes:
        return False
    if name.endswith(nsys_cli.SUFFIX):
        return True
    return name.endswith(TRACES) and not name.endswith(_MEMORY) and size_bytes >= _LEAST_BYTES


def _in_child(
    node_dir: Path,
    path: str,
    work: Path,
    secrets: frozenset[bytes],
    memory_mib: int,
    most_file_bytes: int,
    say: Connection,
) -> None:
    one.hold_back(memory_mib, most_file_bytes)
    try:
        say.send(one.distil(node_dir, path, work, secrets))
    except (RlprofError, OSError, UnsafeName, ValueError, LookupError, ArithmeticError, MemoryError) as error:
        LOG.info(f"{path!r} is not distilled: {error or type(error).__name__}")
        sys.exit(1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; 0 as well where the parts that read reports are not installed."""
    parser = argparse.ArgumentParser(prog="rlprof_ops.analyze.distil", description=__doc__)
    parser.add_argument("--node-dir", required=True, type=Path)
    parser.add_argument("--memory-mib", required=True, type=int)
    arguments = parser.parse_args(argv)
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(asctime)s distil: %(message)s", datefmt="%H:%M:%S"
    )
    lacking = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if lacking:
        LOG.info(
            f"no report is distilled on this node: {', '.join(lacking)} not installed in {sys.executable}"
            " (the extra `analyze`)"
        )
        return 0
    parent = os.getppid()
    distiller = Distiller(arguments.node_dir, arguments.memory_mib)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    # Slurm gives the notice of a time limit to every process of a step.
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        while os.getppid() == parent:
            if not distiller.look():
                time.sleep(LOOK_S)
    finally:
        distiller.end()
    return 0


def _end(number: int, frame: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
