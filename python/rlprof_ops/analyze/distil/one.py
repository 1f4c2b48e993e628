"""Reads one finished report of a node and leaves its columns beside it, in a process of its own that is held
back: the last for a CPU and the disk, bounded in memory, the first to go where memory runs out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import shutil
import signal
import tempfile
from pathlib import Path

from rlprof_ops import backends
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.redact import binary_files

EXPORT_S = 3600.0  # at this priority an export may take long
_NICE = 19
_IDLE_CLASS = 3 << 13  # ioprio_set(2): of no process in particular, when nobody else wants the disk
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_PR_SET_PDEATHSIG = 1
_CHUNK = 8 << 20


def hold_back(memory_mib: int, most_file_bytes: int) -> None:
    """Makes this process, and what it starts, give way to all others; it ends with its parent."""
    signal.signal(signal.SIGTERM, _end)  # the export that runs is ended on the way
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        libc.syscall(number, 1, 0, _IDLE_CLASS)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    for what, most in ((resource.RLIMIT_DATA, memory_mib << 20), (resource.RLIMIT_FSIZE, most_file_bytes)):
        with contextlib.suppress(OSError, ValueError):  # a lower limit holds already
            resource.setrlimit(what, (most, most))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS"):
        os.environ[name] = "1"
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def distil(node_dir: Path, path: str, work: Path, secrets: frozenset[bytes]) -> str:
    """Leaves the columns of the report `path` (below the node folder) beside it; the SHA-256 of the report as
    the run folder gets it. `secrets` are taken out first, in a copy, as the sync does.

    Raises `UnreadableReport`, OSError.
    """
    os.environ["TMPDIR"] = tempfile.tempdir = str(work)
    from rlprof_ops.analyze.readers import cache, read_file

    with ContainedDir(node_dir) as tree:
        name = path.rsplit("/", 1)[-1]
        report = work / name
        _take(tree, path, report, secrets)
        source = cache.digest(report)
        trace = read_file(report, EXPORT_S)
        if not cache.store(trace, report, source, alone=True):
            raise OSError("the columns could not be written")
        made = cache.cache_path(report)
        place = f"{path.rpartition('/')[0]}/{made.name}"
        tree.rename(str(made.relative_to(node_dir)), place)
        return source


def _take(tree: ContainedDir, path: str, copy: Path, secrets: frozenset[bytes]) -> None:
    """The report under its own name in the work folder: itself, or a copy without its secrets."""
    fd = tree.open_read(path)
    try:
        masked = backends.masks(path)
        found = binary_files.places(fd, secrets) if masked else []
        if not found:
            os.link(Path(tree.root, path), copy, follow_symlinks=False)
            if copy.stat().st_ino != os.fstat(fd).st_ino:
                raise OSError("it was exchanged while it was looked at")
            return
        os.lseek(fd, 0, os.SEEK_SET)
        with open(fd, "rb", closefd=False) as source, open(copy, "w+b") as target:
            shutil.copyfileobj(source, target, _CHUNK)
            target.flush()
            binary_files.mask(target.fileno(), found)
        os.chmod(copy, os.fstat(fd).st_mode & 0o777)
    finally:
        os.close(fd)
