"""What the head runs on the run folder once the job is drained: harvest and report, each for bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

from rlprof_ops.host import foreign
from rlprof_ops.host.background import in_background
from rlprof_ops.job.knobs import Settings
from rlprof_ops.recorder.head_recorder import SUMMARY
from rlprof_ops.supervisor.node_drain import Journal, NodeDrain
from rlprof_ops.words import limit

_LEAST_SECONDS = 1.0  # a command needs as much to begin
_STORAGE_SECONDS = 20.0  # for one look into the run folder
_LOOK_SECONDS = 10.0  # for one look at it
_MOST_BYTES = 64 << 20  # of a summary
_REPORT_NEEDS = ("msgspec", "numpy", "pyarrow", "rich", "jinja2")


class ClosingCommands:
    """Our own commands at a job's end, in processes of their own: the end must not hang on them."""

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        run: Path,
        environment: Mapping[str, str],
        files: NodeDrain,
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._run = run
        self._environment = environment
        self._files = files

    async def storage_answers(self) -> bool:
        """Whether there is any use in reading the run folder: what hangs there cannot even be killed, and in
        another folder under its name nothing is ours.
        """
        look = in_background(self._look, seconds=_LOOK_SECONDS)
        answer = await self._files.survived(look, _LOOK_SECONDS + 1, f"looking at {self._run}")
        if answer is None:
            self._journal.say(
                f"{self._run} does not answer as this job's own: no harvest and no report; when it does, run"
                f" scripts/harvest.sh {self._run}"
            )
        return answer is not None

    def _look(self) -> bool:
        with contextlib.suppress(FileNotFoundError):  # which the commands themselves will say
            self._files.run.open().close()
        return True

    async def harvest(self, left_s: float) -> None:
        """Make the manifest, within its knob and what Slurm leaves."""
        await self.within("harvest", "RLPROF_HARVEST_SECONDS", f"scripts/harvest.sh {self._run}", left_s)

    async def report(self, left_s: float) -> None:
        """Explain the run where this node can; anyone can make the report later, anywhere."""
        if not all(importlib.util.find_spec(name) for name in _REPORT_NEEDS):
            return
        look = in_background(_has_something, self._run, seconds=_STORAGE_SECONDS)
        if await self._files.survived(look, _STORAGE_SECONDS + 1, "looking for reports"):
            await self.within("report", "RLPROF_REPORT_SECONDS", f"rlprof report {self._run}", left_s)

    async def within(self, command: str, knob: str, later: str, left_s: float) -> None:
        """Run one command on the run folder for at most the knob's seconds, and `left_s`; `later` is what to
        run by hand then.
        """
        seconds = min(float(self._settings.number(knob)), left_s)
        if not self._settings.number(knob):
            return
        if seconds < _LEAST_SECONDS:
            self._journal.say(f"no time is left for the {command}; run {later}")
            return
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rlprof_ops", command, str(self._run)),
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
        )
        try:
            code = await asyncio.wait_for(process.wait(), seconds)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await self._files.end_what_is_left()
            self._journal.say(f"{command} not done within {limit(seconds)}; run {later}")
            return
        if code < 0:
            self._journal.say(f"{command} ended with {code}; run {later}")


def _has_something(run: Path) -> bool:
    """Whether there are reports of captures, or steps that the recorder has seen. harvest.sh looks for the
    same.
    """
    if any((run / "profiles").glob("*/*/*/*")):
        return True
    summary = foreign.read_object(run / "recorder" / SUMMARY, _MOST_BYTES)
    return bool(foreign.an_object(summary.get("history")).get("steps"))
