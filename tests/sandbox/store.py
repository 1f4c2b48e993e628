"""The folder of sandboxes on the host: who lives in it, taking a name, and removing what a dead keeper
left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.sandbox.box import Box, Living
from tests.sandbox.spec import BASE, LOGIN, SandboxError, Spec
from tests.waits import poll

LOCK_DEADLINE_S = 30


@contextlib.contextmanager
def base_lock() -> Iterator[None]:
    """One at a time takes a name or removes a folder."""
    BASE.mkdir(parents=True, exist_ok=True)
    handle = os.open(BASE, os.O_RDONLY)
    try:
        if not poll(lambda: _lock(handle), LOCK_DEADLINE_S, pause_s=0.02):
            raise SandboxError(f"{BASE} has been locked by another sandbox command for {LOCK_DEADLINE_S} s")
        yield
    finally:
        os.close(handle)


def claim(spec: Spec) -> int:
    """Makes the sandbox's folder and returns the descriptor of its lock, held as long as any process has
    it open.
    """
    with base_lock():
        prune()
        if spec.dir.exists():
            raise SandboxError(
                f"sandbox '{spec.name}' is up already; use it, or `python -m tests.sandbox down --name"
                f" {spec.name}` first"
            )
        spec.dir.mkdir(mode=0o755)
        handle = os.open(spec.dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        if not _lock(handle):
            raise SandboxError(f"cannot lock {spec.dir}/lock")
        (spec.dir / "spec.json").write_text(spec.to_json())
        return handle


def prune() -> list[str]:
    """Removes the sandboxes whose keeper is dead; needs base_lock. Their names."""
    dead = [folder for folder in _folders() if not held(folder)]
    for folder in dead:
        remove(folder)
    return [folder.name for folder in dead]


def names() -> list[str]:
    return [folder.name for folder in _folders()]


def held(folder: Path) -> bool:
    """Whether a sandbox's keeper (or the one starting it) is alive."""
    try:
        handle = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        return not _lock(handle)
    finally:
        os.close(handle)


def remove(folder: Path) -> None:
    """Ends what still runs of a sandbox, unmounts its shared folder and deletes its folder; needs
    base_lock.
    """
    with contextlib.suppress(OSError, ValueError):
        for box in read_state(folder).values():
            box.kill()
    shared = folder / "shared"
    for lazily in ((), ("-l",)):
        if os.path.ismount(shared):
            subprocess.run(["umount", *lazily, str(shared)], capture_output=True, timeout=60, check=False)
    if os.path.ismount(shared):
        raise SandboxError(f"cannot unmount {shared}; its sandbox is left as it is")
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        shutil.rmtree(folder)


def keeper(folder: Path) -> Living | None:
    """The keeper's process, when one has said so and is alive."""
    try:
        living = Living(*json.loads((folder / "keeper.json").read_text()))
    except (OSError, ValueError):
        return None
    return living if living.alive() else None


def write_state(folder: Path, boxes: dict[str, Box]) -> None:
    text = json.dumps({name: dataclasses.asdict(box) for name, box in boxes.items()})
    (folder / "state.json.new").write_text(text)
    (folder / "state.json.new").rename(folder / "state.json")


def read_state(folder: Path) -> dict[str, Box]:
    return {name: Box(**fields) for name, fields in json.loads((folder / "state.json").read_text()).items()}


def _logs(folder: Path, box: str) -> list[Path]:
    if box == LOGIN:
        return [
            folder / "ctl" / "slurmctld.log",
            folder / "ctl" / "stderr",
            folder / "munge" / "log",
            folder / "boxes" / "login.log",
        ]
    return [
        folder / "nodes" / box / "slurmd.log",
        folder / "nodes" / box / "stderr",
        folder / "boxes" / f"{box}.log",
    ]


def fatal_line(folder: Path, box: str) -> str:
    """The line with which a daemon of a box gave up, or nothing."""
    for log in _logs(folder, box):
        with contextlib.suppress(OSError):
            for line in log.read_text(errors="replace").splitlines():
                if "fatal:" in line or "Emergency:" in line:
                    return line
    return ""


def tails(folder: Path, lines: int = 12) -> str:
    """The ends of all logs of a sandbox."""
    shown = []
    for box in (LOGIN, *sorted(path.name for path in folder.glob("nodes/*"))):
        for log in _logs(folder, box):
            with contextlib.suppress(OSError):
                if text := log.read_text(errors="replace").rstrip():
                    shown += [f"--- {log.relative_to(folder)}", *text.splitlines()[-lines:]]
    return "\n".join(shown)


def _folders() -> list[Path]:
    return sorted(path for path in BASE.iterdir() if path.is_dir()) if BASE.is_dir() else []


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
