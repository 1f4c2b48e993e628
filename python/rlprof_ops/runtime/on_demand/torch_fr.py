"""PyTorch's own flight recorder (TORCH_FR_*) in a job's processes, with its dumps in the node folder.

It keeps each rank's latest collectives; torch writes them to a file when one of NCCL runs into its timeout,
and a thread of ours when the job's recorder finds a hang or somebody asks. It is set up when a process makes
its process group: what the user or the trainer has set by then, in the environment or in code, stays.
"""

from __future__ import annotations

import functools
import os
import sys
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rlprof_ops import env_names

if TYPE_CHECKING:
    from rlprof_ops.runtime.on_demand.watcher import CaptureRequest

FOLDER = "torch_fr"  # in the node folder: <pid>/fr_<world>_rank_<rank>
ASKED_SUFFIX = ".pickle"  # of dumps that were asked for; torch's own, after a timeout, have none
ENTRIES = "2000"  # collectives a rank keeps: what torch 2.13 does by itself; 2.8 keeps none
# The name that torch reads, and the one that it has read before 2.8.
_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_AT_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
_NEW_NAMES = (2, 8)
# One recorder for NCCL, one for every other backend; in what PyTorch dumps by itself is the first.
_RECORDERS = (("fr", "_dump_nccl_trace"), ("gloo_fr", "_dump_fr_trace"))
_MOST_BYTES = 64 << 20
_watching = 0  # the process that has a thread which looks for requests


def install(name: str, module: ModuleType) -> None:
    """Set the recorder up when `init_process_group` of torch.distributed.distributed_c10d is called."""
    if os.environ.get(env_names.TORCH_FR) == "0" or not os.environ.get(env_names.NODE_DIR):
        return
    from rlprof_ops.runtime.process.hooks import Watch, follow

    follow(module, "init_process_group", Watch("torch's flight recorder", _arm))


def _arm(
    backend: object = None,
    init_method: object = None,
    timeout: object = None,
    world_size: object = None,
    rank: object = None,
    store: object = None,
    *_: object,
    **__: object,
) -> None:
    """A process group is about to be made, with these arguments of `init_process_group`."""
    env = os.environ
    old = _version(sys.modules["torch"]) < _NEW_NAMES
    if not any(name in env for name in _SIZE):
        env[_SIZE[old]] = ENTRIES
    env.setdefault(_AT_TIMEOUT, "1")
    before = env.pop(env_names.TORCH_FR_FILE, None)  # ours, from a parent or for a group that is gone
    for name in _FILE:
        if name in env and env[name] == before:
            del env[name]
    node_dir = Path(env[env_names.NODE_DIR])
    if not node_dir.is_dir():
        return
    folder, world = node_dir / FOLDER / str(os.getpid()), _world(init_method, store)
    if not any(name in env for name in _FILE):
        folder.mkdir(parents=True, exist_ok=True)
        env[_FILE[old]] = env[env_names.TORCH_FR_FILE] = f"{folder}/fr_{world}_rank_"
    _watch(node_dir, functools.partial(_dump, folder, world), world)


def _version(torch: ModuleType) -> tuple[int, int]:
    major, minor = str(torch.__version__).split(".")[:2]
    return int(major), int(minor)


def _world(init_method: object, store: object) -> str:
    """The same for all ranks that meet, so that those of a trainer and of a rollout server are told apart."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if store is not None:
        where = f"{getattr(store, 'host', '')}:{getattr(store, 'port', '')}{getattr(store, 'path', '')}"
    elif init_method in (None, "env://"):
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    else:
        where = str(init_method)
    return f"{zlib.crc32(where.encode()):08x}"


def _watch(node_dir: Path, dump: Callable[[], None], world: str) -> None:
    """Call `dump` when dumps are asked for, and tell how the process stands in its groups; one thread a
    process, a forked one has none of its parent's.
    """
    global _watching
    if _watching == os.getpid():
        return
    from rlprof_ops.runtime import marks
    from rlprof_ops.runtime.on_demand.group_state import SUFFIX, GroupTeller
    from rlprof_ops.runtime.on_demand.watcher import DUMPS, Watcher
    from rlprof_ops.runtime.on_demand.watcher import FOLDER as CONTROL
    from rlprof_ops.runtime.process.failures import follow_failures

    def on_demand(asked: CaptureRequest) -> None:
        if asked.backend == DUMPS:
            dump()

    first = None
    if marks.asked():
        follow_failures()
        first = GroupTeller(node_dir / marks.FOLDER / f"{os.getpid()}{SUFFIX}", world).tell
    Watcher(node_dir / CONTROL, on_demand, first)
    _watching = os.getpid()


def _dump(folder: Path, world: str) -> None:
    """Write what this process has recorded beside what torch writes by itself. Runs in the watcher's thread,
    while the training's may be inside a collective that never ends.
    """
    distributed, c10d = import_module("torch.distributed"), import_module("torch._C._distributed_c10d")
    if not distributed.is_initialized():
        return
    written = b""
    for kind, function in _RECORDERS:
        take = getattr(c10d, function, None)  # neither before 2.8 without NCCL
        raw = b"" if take is None else take()
        if b"profiling_name" in raw and raw != written and len(raw) <= _MOST_BYTES:
            from rlprof_ops.host import atomic

            folder.mkdir(parents=True, exist_ok=True)
            name = f"{kind}_{world}_rank_{distributed.get_rank()}{ASKED_SUFFIX}"
            atomic.write(folder / name, raw, mode=0o600)
            written = raw
