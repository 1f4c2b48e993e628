"""Where this process is in its step, for the recorder of its node: a small mapped file.

Storing costs no system call, the kernel keeps the file when we die, and the recorder reads it once a second.
Beside it lies a line for each step of a process that does not lead; the lines of the one that leads are among
its events.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.host import atomic
from rlprof_ops.runtime.process.event_log import log_once

FOLDER = "marks"
SUFFIX = ".now"
ENGINE_SUFFIX = ".engine"
_FIELDS = struct.Struct(
    "<qqqiiii64s"
)  # step, its begin, since when the phase; rank, world, pid, leads; phase
_WORKER_BYTES = 120
SIZE = _FIELDS.size + _WORKER_BYTES
_PHASE_BYTES = 64


def asked() -> bool:
    """Whether this process's steps are recorded."""
    return os.environ.get(env_names.RECORD, "0") not in ("", "0")


@dataclass(frozen=True)
class Now:
    """What the file holds. `step` 0: none yet, negative: that one has ended. Times are Unix nanoseconds."""

    step: int
    begin_ns: int
    phase_ns: int
    rank: int
    world: int
    pid: int
    leads: bool
    phase: str
    worker: str


def unpack(data: bytes) -> Now | None:
    """None for what is no such file."""
    if len(data) < SIZE:
        return None
    step, begin_ns, phase_ns, rank, world, pid, leads, phase = _FIELDS.unpack_from(data)
    worker = data[_FIELDS.size : SIZE].rstrip(b"\0").decode("utf-8", "replace")
    text = phase.rstrip(b"\0").decode("utf-8", "replace")
    return Now(step, begin_ns, phase_ns, rank, world, pid, bool(leads), text, worker)


class NowFile:
    """The writer's side. What goes wrong is said once; then nothing is stored."""

    def __init__(
        self, path: Path, worker: str, rank: int, world: int, leads: bool, pid: int | None = None
    ) -> None:
        """`pid`: of another process, whose steps these are."""
        self._map: mmap.mmap | None = None
        self._step = self._begin_ns = 0
        self._rest = (rank, world, pid or os.getpid(), int(leads))
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                # Written, not only sized: a mapped hole on a full disk would kill us with SIGBUS.
                name = worker.encode("utf-8", "replace")[:_WORKER_BYTES].ljust(_WORKER_BYTES, b"\0")
                os.write(descriptor, _FIELDS.pack(0, 0, 0, *self._rest, b"") + name)
                self._map = mmap.mmap(descriptor, SIZE)
            finally:
                os.close(descriptor)
        except (OSError, ValueError, struct.error) as error:
            log_once(f"cannot write {path}: {error}; the recorder does not see where this process is")

    def step(self, step: int, begin_ns: int) -> None:
        """A step has begun; `-step`: it has ended."""
        self._step, self._begin_ns = step, begin_ns
        self.phase("", begin_ns)

    def phase(self, name: str, t_ns: int) -> None:
        if self._map is not None:
            text = name.encode("utf-8", "replace")[:_PHASE_BYTES]
            _FIELDS.pack_into(self._map, 0, self._step, self._begin_ns, t_ns, *self._rest, text)


def tell_engine(host: str, port: int) -> None:
    """Leave the address of the metrics that this process serves to the recorder of its node.

    Raises OSError where the node folder does not take it.
    """
    node_dir = os.environ.get(env_names.NODE_DIR)
    if not node_dir:
        return
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    url = f"http://[{local}]:{port}/metrics" if ":" in local else f"http://{local}:{port}/metrics"
    path = Path(node_dir, FOLDER, f"{os.getpid()}{ENGINE_SUFFIX}")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    atomic.write(path, f"{url}\n", mode=0o600)
