"""Tries a profiler's options before workers are started with them: once for the same options, bounded in
time, alone; what worked on this image and driver is remembered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.backends import trial_memory
from rlprof_ops.host import processes
from rlprof_ops.host.background import in_background
from rlprof_ops.words import limit

TIMEOUT_S = 20.0
_REMEMBER_FAILURE_S = 60.0
_TRIES = 3
_MEMORY_S = 2.0  # for a home that hangs
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
        tool: str = "",
    ) -> str | None:
        """Run `command` unless that was done for `key`; why it must not be used, or None when it works.

        "{folder}" in `command` and in the values of `env` stands for the trial's own folder, which holds
        `files` and is removed afterwards. `proof` names a file in it that the command must have written: some
        tools fail with exit code 0. `tool`: the program whose options these are, where one that worked with
        them on this image and driver is remembered across jobs (`trial_memory`).
        """
        identity = tuple(key)
        when, reason = self._known.get(identity, (0.0, ""))
        if identity in self._known and (reason is None or time.monotonic() - when < _REMEMBER_FAILURE_S):
            return reason
        task = self._running.get(identity)
        if task is None:
            task = asyncio.ensure_future(_once_a_node(tool, identity, command, env, files or {}, proof))
            self._running[identity] = task
            task.add_done_callback(lambda _: self._running.pop(identity, None))
        reason = await asyncio.shield(task)
        self._known[identity] = (time.monotonic(), reason)
        return reason


async def _once_a_node(
    tool: str,
    words: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str],
    files: Mapping[str, str],
    proof: str | None,
) -> str | None:
    """Try, unless a job before has: what works is remembered, and what does not is tried again."""
    key = await _off_the_loop(trial_memory.key_of, tool, words) if tool else None
    if key and await _off_the_loop(trial_memory.knows, key):
        return None
    reason = await _try_some(command, env, files, proof)
    if key and reason is None:
        await _off_the_loop(trial_memory.remember, key)
    return reason


async def _off_the_loop(work: Callable[..., Any], *arguments: object) -> Any:
    """What `work` gives; None where the disk that it reads gives nothing in time."""
    try:
        return await in_background(work, *arguments, seconds=_MEMORY_S)
    except (OSError, ValueError, RuntimeError):  # it hangs; no thread is to be had
        return None


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
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
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
        # A profiler's agent outlives its command in a session of its own.
        processes.end(processes.started_with(f"TMPDIR={folder}"), grace_s=0.0)
        shutil.rmtree(folder, ignore_errors=True)


def _existing(folder: str | None) -> str | None:
    return folder if folder and os.path.isdir(folder) else None


def _said(folder: Path) -> str:
    """The lines that speak of an error, else the last ones: tools print their usage before or after."""
    text = (folder / "output.txt").read_text(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)]
    return " | ".join(telling[:3] or lines[-3:])[:600]
