"""Stand-ins for what a runtime-env plugin meets: Ray's context of one worker, an nsys that runs programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Notes its words in `<itself>.calls`, with a line for the session and one for TMPDIR; refuses --bogus, hangs
# on --hang; ends early as often as `<itself>.fails` says, hangs before the program as often as
# `<itself>.hangs` says (the program comes 3 s later all the same); else runs the program as nsys does: with
# umask 0.
_NSYS = r"""#!/bin/bash
{ printf '%s\n' "$RLPROF_NSYS_SESSION" "$TMPDIR"; printf '%s\037' "$@"; echo; } >> "$0.calls"
case "$*" in
  *--bogus*) echo "unrecognised option '--bogus=1'" >&2; echo usage; exit 1;;
  *--hang*) exec sleep 1001;;
esac
once_less() {
    local left
    left=$(cat "$0.$1" 2> /dev/null || echo 0)
    [ "$left" != 0 ] && echo $((left - 1)) > "$0.$1"
}
once_less fails && { echo "End of file" >&2; exit 3; }
late=""
once_less hangs && late=yes
while [ $# -gt 0 ] && [ "$1" != /bin/sh ]; do shift; done
umask 0
[ -z "$late" ] || { (sleep 3; "$@") & exec sleep 600; }
[ $# = 0 ] || exec "$@"
"""


class FakeNsys:
    """An executable that behaves as nsys does towards what starts it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "bin dir" / "nsys"
        self.path.parent.mkdir(parents=True)
        self.path.write_text(_NSYS)
        self.path.chmod(0o755)

    def __str__(self) -> str:
        return str(self.path)

    def fail(self, times: int) -> None:
        """End that often before the program begins."""
        self.path.with_name("nsys.fails").write_text(str(times))

    def hang(self, times: int) -> None:
        """Hang that often before the program begins."""
        self.path.with_name("nsys.hangs").write_text(str(times))

    def _lines(self) -> list[str]:
        calls = self.path.with_name("nsys.calls")
        return calls.read_text().splitlines() if calls.exists() else []

    def environments(self) -> list[tuple[str, str]]:
        """The session's name and TMPDIR of each call."""
        lines = self._lines()
        return list(zip(lines[::3], lines[1::3], strict=True))

    def words(self) -> list[list[str]]:
        """The words of each call."""
        return [line.rstrip("\x1f").split("\x1f") for line in self._lines()[2::3]]

    def calls(self) -> list[str]:
        """The words of each call, joined by spaces."""
        return [" ".join(words) for words in self.words()]


class Context:
    """The part of Ray's RuntimeEnvContext that plugins change."""

    def __init__(self, py_executable: str = sys.executable, **env_vars: str) -> None:
        self.py_executable = py_executable
        self.env_vars = dict(env_vars)
        self.command_prefix: list[str] = []


def own_environment(**more: str) -> dict[str, str]:
    """This process's environment without what a job or a launcher says, with the package on PYTHONPATH."""
    from rlprof_ops.runtime.process.worker_identity import RANK_VARIABLES

    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RLPROF_", "NRL_", "SLURM_", "RAY_")) and name not in RANK_VARIABLES
    }
    return {**env, "PYTHONPATH": os.pathsep.join(sys.path), **more}
