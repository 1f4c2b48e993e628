"""Tries a profiler's options before workers are started with them: once for the same options, bounded in
time, alone.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.words import limit

TIMEOUT_S = 20.0
_REMEMBER_FAILURE_S = 60.0
_TRIES = 3
# nsys 2023.4 on a busy node, seen under load: says nothing about the options.
BAD_LUCK = re.compile(
    r"Connection to Agent lost|Local Endpoint is not available|The proxy is not started|\bEnd of file\b"
)
_TELLING = re.compile(r"error|unrecogni|unknown|invalid|illegal|not found|no module", re.IGNORECASE)


def timeout_s(env: Mapping[str, str]) -> float:
    """How long a trial may take: `RLPROF_CHECK_TIMEOUT_S`, else 20 s (nsys 2023.4 takes 3 s)."""
    try:
        return float(env.get(env_names.CHECK_TIMEOUT_S) or TIMEOUT_S)
    except ValueError:
        return TIMEOUT_S


def trial_env() -> dict[str, str]:
    """The environment of a trial: the agent's, with the job's folder for what a profiler leaves in TMPDIR."""
    env = dict(os.environ)
    if env.get(env_names.NODE_DIR):
        env["TMPDIR"] = os.path.join(env[env_names.NODE_DIR], "tmp")
    return env


class Trials:
    """What was tried on this node. Environments that are set up at once share the trial of the same
    options.
    """

    def __init__(self) -> None:
        self._running: dict[tuple[str, ...], asyncio.Task[str | None]] = {}
        self._known: dict[tuple[str, ...], tuple[float, str | None]] = {}

    async def reason_against(
        self,
        key: Sequence[str],
        command: Sequence[str],
        env: Mapping[str, str],
        files: Mapping[str, str] | None = None,
        proof: str | None = None,
    ) -> str | None:
        """Run `command` unless that was done for `key`; why it must not be used, or None when it works.

        "{folder}" in `command` and in the values of `env` stands for the trial's own folder, which holds
        `files` and is removed afterwards. `proof` names a file in it that the command must have written: some
        tools fail with exit code 0.
        """
        identity = tuple(key)
        when, reason = self._known.get(identity, (0.0, ""))
        if identity in self._known and (reason is None or time.monotonic() - when < _REMEMBER_FAILURE_S):
            return reason
        task = self._running.get(identity)
        if task is None:
            task = asyncio.ensure_future(_try_some(command, env, files or {}, proof))
            self._running[identity] = task
            task.add_done_callback(lambda _: self._running.pop(identity, None))
        reason = await asyncio.shield(task)
        self._known[identity] = (time.monotonic(), reason)
        return reason


async def _try_some(
    command: Sequence[str], env: Mapping[str, str], files: Mapping[str, str], proof: str | None
) -> str | None:
    """Once, or again while the profiler fails for a reason that has nothing to do with what was asked of
    it.
    """
    reason = None
    for _ in range(_TRIES):
        reason = await _try(command, env, files, proof)
        if reason is None or not BAD_LUCK.search(reason):
            break
    return reason


async def _try(
    command: Sequence[str], env: Mapping[str, str], files: Mapping[str, str], proof: str | None
) -> str | None:
    limit_s = timeout_s(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="rlprof-trial-", dir=_existing(env.get("TMPDIR"))))
    try:
        full = {key: value.replace("{folder}", str(folder)) for key, value in env.items()}
        full["TMPDIR"] = str(folder)
        for name, text in files.items():
            (folder / name).write_text(text)
        argv = [word.replace("{folder}", str(folder)) for word in command]
        with (folder / "output.txt").open(
            "wb"
        ) as output:  # a file: a pipe would be held open by what outlives the command
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=full,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                code = await asyncio.wait_for(process.wait(), limit_s)
            except asyncio.TimeoutError:
                _kill_group(process.pid)
                await process.wait()
                return f"did not return within {limit(limit_s)}: {_said(folder) or 'it said nothing'}"
        if code != 0:
            return f"exit code {code}: {_said(folder) or 'it said nothing'}"
        if proof and not (folder / proof).exists():
            return f"exit code 0, but it did not run the program: {_said(folder) or 'it said nothing'}"
        return None
    except OSError as error:
        return f"{error.strerror or error}: {error.filename or command[0]}"
    finally:
        _kill_left_behind(str(folder))
        shutil.rmtree(folder, ignore_errors=True)


def _existing(folder: str | None) -> str | None:
    return folder if folder and os.path.isdir(folder) else None


def _said(folder: Path) -> str:
    """The lines that speak of an error, else the last ones: tools print their usage before or after."""
    text = (folder / "output.txt").read_text(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)]
    return " | ".join(telling[:3] or lines[-3:])[:600]


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _kill_left_behind(folder: str) -> None:
    """A profiler's agent outlives its command in a session of its own; it is known by the trial's TMPDIR."""
    mark = f"TMPDIR={folder}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as variables:
                if mark in variables.read().split(b"\0"):
                    os.kill(int(entry), signal.SIGKILL)
        except OSError:
            continue
