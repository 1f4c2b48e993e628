"""A person at the login node of the sandbox: types `rlprof`, reads what it says, keeps a transcript."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.sandbox import Sandbox
from tests.waits import wait_until

MARK = "<!-- transcript -->"
ABSENT = ("sacct", "rsync", "enroot")  # each job and each command has to do without


def without_tools(sandbox: Sandbox) -> Path:
    """A folder for the front of PATH in which the absent programs fail, and write down who asked for them."""
    tools = sandbox.shared / "tools"
    tools.mkdir(exist_ok=True)
    used = sandbox.shared / "used"
    used.unlink(missing_ok=True)
    for name in ABSENT:
        (tools / name).write_text(f"#!/bin/sh\necho {name} >> {shlex.quote(str(used))}\nexit 127\n")
        (tools / name).chmod(0o755)
    return tools


def used_tools(sandbox: Sandbox) -> str:
    log = sandbox.shared / "used"
    return log.read_text() if log.exists() else ""


class Login:
    """In an own folder, without sacct, pyxis and rsync. `rlprof` is how the program is called there."""

    def __init__(
        self,
        sandbox: Sandbox,
        folder: Path,
        path: str = "",
        rlprof: Sequence[str] = (sys.executable, "-m", "rlprof_ops"),
    ) -> None:
        self.sandbox, self.folder, self.rlprof = sandbox, folder, list(rlprof)
        folder.mkdir(parents=True, exist_ok=True)
        self.env = {
            "PATH": f"{without_tools(sandbox)}:{path or os.environ['PATH']}",
            "XDG_STATE_HOME": str(sandbox.shared / "state"),
        }
        self.text: list[str] = []
        self.venv = ""

    def start(self, *words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        return self.sandbox.popen(
            "login",
            [*self.rlprof, *words],
            env=self.env,
            cwd=cwd or self.folder,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def type(
        self, *words: str, cwd: Path | None = None, code: int = 0, show: bool = True, timeout: float = 250
    ) -> str:
        """Run one command to its end, hold it to its exit code, and give what it said."""
        process = self.start(*words, cwd=cwd)
        try:
            out, _ = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
        assert process.returncode == code, out
        if show:
            self.note(words, out, code)
        return out

    def shell(self, line: str) -> None:
        """A line for the shell itself; what it exports, later commands get."""
        shown = subprocess.run(
            ["bash", "-ec", f"{line}\nenv -0"], cwd=self.folder, env=self.env, capture_output=True, check=True
        ).stdout
        variables = dict(entry.partition("=")[::2] for entry in shown.decode().split("\0") if entry)
        self.env |= {name: value for name, value in variables.items() if name in line}
        self.text.append(f"$ {line}\n")

    def note(self, words: tuple[str, ...], out: str, code: int = 0) -> None:
        line = " ".join(word if re.fullmatch(r"[\w@%+=:,./-]+", word) else f"'{word}'" for word in words)
        self.text.append(f"$ rlprof {line}\n{out.rstrip()}\n" + (f"(exit code {code})\n" if code else ""))

    def status(self, job: str) -> dict[str, Any]:
        process = self.start("status", job, "--json", cwd=Path("/"))
        out, _ = process.communicate(timeout=200)
        found: dict[str, Any] = json.loads(out)
        return found

    def until(self, job: str, what: Callable[[dict[str, Any]], bool], seconds: float = 200) -> dict[str, Any]:
        """Wait until the job's status is so; a job that ends meanwhile fails the test."""
        view: dict[str, Any] = {}

        def so() -> bool:
            view.clear()
            view.update(self.status(job))
            return what(view)

        wait_until(so, seconds, lambda: view, pause_s=1, unless=lambda: view["state"] == "ended")
        return view

    def used(self) -> str:
        """Which of the absent programs somebody called after all."""
        return used_tools(self.sandbox)

    def transcript(self, *places: tuple[str, str]) -> str:
        """What was typed and said, with this machine's paths as everybody's."""
        text = "\n".join(self.text)
        for real, shown in (*places, (str(self.folder), "/shared/me"), (str(self.sandbox.shared), "/shared")):
            text = text.replace(real, shown)
        return re.sub(r"(?m)^note: .*PYTHONPATH.*\n", "", text).rstrip()


def in_document(document: Path) -> str:
    """The transcript that stands in a page."""
    return document.read_text().partition(MARK)[2].partition("```console\n")[2].partition("\n```")[0]


def put_into(document: Path, transcript: str) -> None:
    kept, _, after = document.read_text().partition(MARK)
    rest = after.partition("\n```\n")[2]
    document.write_text(f"{kept}{MARK}\n\n```console\n{shortened(transcript)}\n```\n{rest}")


def shortened(transcript: str) -> str:
    """The transcript with `…` in the middle of a long row of findings that are ok, or of a job's states."""
    entries = re.findall(r"(?m)^.*\n?(?: {20,}.*\n?)*", transcript)
    kept = list[str]()
    for kind, row in groupby(entries, _repeated):
        lines = list(row)
        kept += [*lines[:6], "…\n", *lines[-3:]] if kind and len(lines) > 10 else lines
    return "".join(kept)


def _repeated(entry: str) -> str:
    found = re.match(r"ok(?=    )|\d\d:\d\d:\d\d( job \d+: )", entry)
    return (found[1] or found[0]) if found else ""


def shape(transcript: str) -> list[str]:
    """The lines that every run of the same story has: what was typed, how much came home, how it ended."""
    jobs = {
        number: f"J{i}"
        for i, number in enumerate(re.findall(r"(?m)^job (\d+) submitted$", transcript), start=1)
    }
    wanted = r"\$ .*|\d+ captures planned: .*|\(exit code \d+\)|n\d|reports: .*"
    lines = [line for line in transcript.splitlines() if re.fullmatch(wanted, line)]
    takes_job = re.compile(r"(\$ rlprof (?:status|attach|capture|stop|retry|logs -f) )(\d+)")
    return [takes_job.sub(lambda found: found[1] + jobs.get(found[2], found[2]), line) for line in lines]
