"""py-spy as a backend of rlprof-ops: samples of the Python stacks of a process, one file a window.

An example of a package that brings a backend; `docs/add_a_backend.md` explains it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rlprof_ops.backends.contract import (
    Asked,
    Backend,
    CaptureError,
    Check,
    Spec,
    Verdict,
    Where,
    WindowRecorder,
    check_not_empty,
)

SUFFIX = ".stacks.txt"
_BEGINS_S, _ENDS_S = 20.0, 60.0


class PySpy(Backend):
    name = "pyspy"
    title = "py-spy"
    suffixes = (SUFFIX,)
    summary = "py-spy: samples of the Python stacks of a process"
    bytes_per_rank_step = 1 << 20

    def check(self, path: Path) -> Check:
        """A line is a stack, a space and a count."""
        found = check_not_empty(path)
        if found:
            return found
        last = path.read_text(errors="replace").rstrip().rpartition("\n")[2]
        whole = last.rpartition(" ")[2].isdecimal()
        return Check("ok") if whole else Check("truncated", "the last line has no count")

    def validate(self, spec: Asked, where: Where) -> Verdict:
        wrong = [name for name in (*spec.options, *spec.flags) if name != "rate"]
        return Verdict(tuple(f"the pyspy backend has no option {name!r}: it has rate" for name in wrong))

    def recorder(self, spec: Spec, beside: Sequence[Spec]) -> tuple[WindowRecorder | None, str]:
        beside_python = Path(sys.executable).with_name("py-spy")
        tool = str(beside_python) if beside_python.exists() else shutil.which("py-spy")
        if tool is None:
            return None, "py-spy is not installed here"
        return PySpyRecorder(tool, str(spec.options.get("rate", "50"))), ""


class PySpyRecorder:
    """`py-spy record` beside the process, from `open` until it is told to end."""

    suffix = SUFFIX

    def __init__(self, tool: str, rate: str) -> None:
        self._tool, self._rate = tool, rate
        self._running: subprocess.Popen[str] | None = None
        self._target = Path()

    def open(self, target: Path) -> None:
        words = ["record", "--pid", str(os.getpid()), "--format", "raw", "--duration", "unlimited"]
        said = target.with_suffix(".log")
        with said.open("w") as log:
            self._running = subprocess.Popen(
                [self._tool, *words, "--rate", self._rate, "--output", str(target)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + _BEGINS_S
        while "Sampling process" not in said.read_text():
            if self._running.poll() is not None or time.monotonic() > until:
                self._running.kill()
                raise CaptureError(f"py-spy did not begin: {said.read_text().strip()[-200:]}")
            time.sleep(0.02)
        self._target = target

    def entered(self, step: int) -> None:
        return None

    def close(self) -> Path:
        assert self._running is not None
        self._running.send_signal(signal.SIGINT)
        try:
            self._running.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._running.kill()
            raise CaptureError("py-spy did not end") from None
        return self._target


BACKEND = PySpy()
