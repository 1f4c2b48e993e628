"""The one home of what stands in for nsys: programs that answer as it does, but for the fault a test wants.

`FakeNsys` starts programs as `nsys launch` does, `answering_nsys` takes windows as `nsys start` and
`nsys stop` do, `hanging_nsys` is the real one but for some command lines, and `slow_nsys` but for its
importer.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from rlprof_ops.backends.nsight import nsys_cli

# Notes its words in `<itself>.calls`, with a line for the session and one for TMPDIR; refuses --bogus, hangs
# on --hang; ends early as often as `<itself>.fails` says, hangs before the program as often as
# `<itself>.hangs` says (the program comes 3 s later all the same); else runs the program as nsys does: with
# umask 0.
_LAUNCHES = r"""#!/bin/bash
{ printf '%s\n' "$RLPROF_NSYS_SESSION" "$TMPDIR"; printf '%s\037' "$@"; echo; } >> "$0.calls"
case "$*" in
  *--bogus*) echo "unrecognised option '--bogus=1'" >&2; echo usage; exit 1;;
  *--hang*) echo $$ >> "$0.hung"; exec sleep 1001;;
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

# Notes each subcommand in `<itself>.calls`. `state` and `report` are for a test's own answers.
_ANSWERS = """#!/bin/bash
echo "$1" >> "$0.calls"
state() {{ echo "$1" > "$0.state"; }}
report() {{ printf 'NVIDIA Tegra Profiler Report [END]' > "$(cat "$0.report")"; }}
listing() {{ echo "     1   00:01   $(cat "$0.state" 2> /dev/null || echo Collection)   1 "{session}; }}
raw() {{
    local path
    path="$(sed 's/nsys-rep$/qdstrm/' "$0.report")"
    echo raw > "$path"
    printf '[1/1] 100%%\\nGenerated:\\n    %s\\n' "$path"
}}
case "$1" in
{cases}
esac
"""
# What each subcommand runs unless a test says otherwise; those that are not named here do nothing.
_HEALTHY = {"sessions": "listing", "start": 'state Collection; echo "$4" > "$0.report"', "stop": "report"}


class FakeNsys:
    """An executable that behaves as nsys does towards what starts it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "bin dir" / "nsys"
        self.path.parent.mkdir(parents=True)
        executable(self.path, _LAUNCHES)

    def __str__(self) -> str:
        return str(self.path)

    def fail(self, times: int) -> None:
        """End that often before the program begins."""
        self.path.with_name("nsys.fails").write_text(str(times))

    def hang(self, times: int) -> None:
        """Hang that often before the program begins."""
        self.path.with_name("nsys.hangs").write_text(str(times))

    def hanging(self) -> list[int]:
        """Those that --hang holds still; of this stand-in's own, for another worker's tests hang one too."""
        noted = self.path.with_name("nsys.hung")
        pids = [int(pid) for pid in noted.read_text().split()] if noted.exists() else []
        return [pid for pid in pids if b"sleep" in command_line(pid)]

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


def command_line(pid: int) -> bytes:
    """A process's words; none of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def answering_nsys(folder: Path, *, session: str = "rlprof-test", importer: str = "", **answers: str) -> Path:
    """An nsys of one session in `folder`, whose windows open, close and leave a report.

    Args:
        session: what its list of sessions names.
        importer: what a QdstrmImporter beside it runs; none is there without.
        answers: what a subcommand runs instead, in bash; it may call `state NAME`, `report` (write it),
            `listing` (of the sessions) and `raw` (leave a raw capture in the report's place).
    """
    cases = (f"  {name}) {command};;" for name, command in (_HEALTHY | answers).items())
    folder.mkdir(exist_ok=True)
    if importer:
        executable(folder / "QdstrmImporter", f"#!/bin/bash\n{importer}\n")
    program = _ANSWERS.format(session=shlex.quote(session), cases="\n".join(cases))
    return executable(folder / "nsys", program)


def hanging_nsys(folder: Path, pattern: str) -> Path:
    """The real nsys in `folder`, but it never returns for a command line like `pattern` (a shell's)."""
    real = shlex.quote(str(shutil.which("nsys")))
    program = f'#!/bin/bash\ncase "$*" in {pattern}) exec sleep 3600;; esac\nexec {real} "$@"\n'
    return executable(folder / "nsys", program)


def slow_nsys(folder: Path, before: str = ":", after: str = ":") -> Path:
    """The real nsys below `folder`, whose own importer first runs `before`, in bash, for each capture, and
    then `after`, in which "$4" is the report.
    """
    real = Path(str(shutil.which("nsys"))).resolve()
    importer = nsys_cli.find_importer({"RLPROF_NSYS": str(real), "PATH": ""})
    assert importer is not None
    for part in {real.parent, importer.parent}:
        (folder / part.name).mkdir(parents=True)
        for entry in part.iterdir():
            (folder / part.name / entry.name).symlink_to(entry)
    nsys = folder / real.parent.name / real.name
    nsys.unlink()
    shutil.copy2(real, nsys)  # it finds its importer from its own true path
    mine = folder / importer.parent.name / importer.name
    mine.unlink()
    program = (
        f'#!/bin/bash\n[ "$1" != --version ] || exec {shlex.quote(str(importer))} "$@"\n'
        f'{before}\n{shlex.quote(str(importer))} "$@" || exit\n{after}\n'
    )
    executable(mine, program)
    return nsys


def executable(path: Path, program: str) -> Path:
    """Write a program that everybody may run."""
    path.write_text(program)
    path.chmod(0o755)
    return path
