"""What a process under `nsys launch` leaves for its node's supervisor: whose session it is, and who opens
its windows.

`<node folder>/sessions/<session>.json`. The first Python process of the session writes it when it starts; its
children are inside the session and write nothing. A profiler of the runtime, or an adapter that knows the
process's role better, writes it again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.host import atomic, foreign

FOLDER = "sessions"


@dataclass(frozen=True)
class Session:
    """One nsys session. `gate`: the process itself opens windows ("process"), its supervisor does, or
    nobody. `options`: of `nsys start`, for windows that its trainer opens; None for one without a value."""

    name: str
    worker: str
    rank: int
    pid: int
    host: str
    tmpdir: str
    gate: str = "supervisor"
    world_size: int | None = None
    began: int = 0  # the job's step when its process began
    options: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def lives(self) -> bool:
        return os.path.isdir(f"/proc/{self.pid}")


def register(
    worker: str | None = None, rank: int | None = None, *, gate: str = "", world: int | None = None
) -> None:
    """Write or rewrite this process's session file; nothing happens in a process without a session of its
    own."""
    env = os.environ
    session, node_dir = env.get(env_names.NSYS_SESSION), env.get(env_names.NODE_DIR)
    if not session or not node_dir or not is_owner(env):
        return
    first = not claimed(env, session)
    env[env_names.SESSION_PID] = f"{os.getpid()}:{session}"
    path = Path(node_dir, FOLDER, f"{session}.json")
    before = None if first else read(path)
    from rlprof_ops.runtime import step_clock
    from rlprof_ops.runtime.process.event_log import log_once
    from rlprof_ops.runtime.process.worker_identity import find_identity

    place = find_identity(worker or (before and before.worker) or None, rank, world, env)
    if rank is None and worker is None and before is not None:
        rank = before.rank
    found = Session(
        session,
        place.worker,
        place.rank if rank is None else rank,
        os.getpid(),
        place.host,
        env.get("TMPDIR", "/tmp"),
        gate or (before.gate if before else _first_gate(env, place.worker)),
        place.world_size if before is None or world is not None else before.world_size,
        step_clock.current_step() if before is None else before.began,
        _trainers_options(env),
    )
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        atomic.write(path, json.dumps(asdict(found)))
    except OSError as error:
        log_once(f"{path}: {error.strerror or error}; the node's supervisor opens no window of this process")


def _trainers_options(env: Mapping[str, str]) -> dict[str, str | None]:
    with contextlib.suppress(ValueError):
        return foreign.typed(foreign.parse(env.get(env_names.SESSION_OPTIONS, "{}")), dict[str, str | None])
    return {}


def _first_gate(env: Mapping[str, str], worker: str) -> str:
    """COMMAND runs under a name that an adapter in it may take, or an actor that it creates (a `controller`):
    nobody opens its windows until its own process has said that it is that worker. `driver` is nobody else.
    """
    from rlprof_ops.runtime.process.worker_identity import DRIVER

    leads = env.get(env_names.LEADS) == "1" and worker != DRIVER
    return "nobody" if leads else "supervisor"


def read(path: Path) -> Session | None:
    """The session of one file; None for what is none."""
    with contextlib.suppress(OSError, ValueError):
        return foreign.typed(foreign.read(path), Session)
    return None


def read_all(node_dir: str | os.PathLike[str], *, ended: bool = False) -> list[Session]:
    """Every session of a node whose process lives; with `ended` those of others too."""
    try:
        paths = sorted(Path(node_dir, FOLDER).glob("*.json"))
    except OSError:
        return []
    found = [session for session in map(read, paths) if session is not None]
    return [session for session in found if ended or session.lives]


def is_owner(env: Mapping[str, str]) -> bool:
    """Whether this process is the one that its session is named after."""
    session = env.get(env_names.NSYS_SESSION)
    return bool(session) and claimed(env, str(session)) in (None, os.getpid())


def registered(env: Mapping[str, str]) -> bool:
    """Whether this process owns its session and has left the file for its supervisor."""
    path = Path(env.get(env_names.NODE_DIR, ""), FOLDER, f"{env.get(env_names.NSYS_SESSION)}.json")
    return claimed(env, env.get(env_names.NSYS_SESSION, "")) == os.getpid() and path.exists()


def claimed(env: Mapping[str, str], session: str) -> int | None:
    """The pid of the process that is the owner of `session` by its variables; None where none has said so."""
    pid, _, name = env.get(env_names.SESSION_PID, "").partition(":")
    return int(pid) if name == session and pid.isdigit() else None
