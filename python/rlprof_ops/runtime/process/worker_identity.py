"""Who this process is and where its files go: docs/contracts.md, "The node folder"."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.backends import names

DEFAULT_FOLDER = "rlprof-profiles"


@dataclass(frozen=True)
class WorkerIdentity:
    """One training process and its folders. `root` is what event paths are relative to."""

    worker: str
    rank: int
    world_size: int | None
    host: str
    pid: int
    root: Path
    tmp: Path
    events: Path

    @property
    def stem(self) -> str:
        """`<worker>_rank<R>_<host>_<pid>`: unique on shared storage."""
        return names.process_name(self.worker, self.rank, self.host, self.pid)

    def report_name(self, window: object, phase: str | None, suffix: str) -> str:
        return names.report_name(self.worker, self.rank, window, phase, self.host, self.pid, suffix)

    def report_path(self, backend: str, report: str) -> Path:
        return self.root / names.report_folder(backend, self.worker, self.rank) / report


def find_identity(
    worker: str | None, rank: int | None, world_size: int | None, env: Mapping[str, str]
) -> WorkerIdentity:
    """The place of this process. What is not given comes from the plugin's variables, then from torchrun's.

    Folders: `RLPROF_NODE_DIR`; without it the run folder; without that `./rlprof-profiles`.
    """
    worker = worker or env.get("RLPROF_WORKER") or "worker"
    if rank is None:
        rank = _number(env.get("RLPROF_RANK")) if env.get("RLPROF_RANK") else _number(env.get("RANK"))
    if world_size is None:
        world_size = _number(env.get("WORLD_SIZE"))
    host = env.get("RLPROF_NODE") or socket.gethostname()
    node_dir, run_dir = env.get("RLPROF_NODE_DIR"), env.get("RLPROF_RUN_DIR")
    if node_dir or not run_dir:
        root = Path(node_dir or DEFAULT_FOLDER).absolute()
        own = root
    else:  # no supervisor copies from this node: write where the run folder wants it
        root = Path(run_dir).absolute()
        own = root / "nodes" / names.safe(host)
    return WorkerIdentity(worker, rank or 0, world_size, host, os.getpid(), root, own / "tmp", own / "events")


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d+", text) else None
