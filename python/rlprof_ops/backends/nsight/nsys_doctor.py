"""nsys on a node: there, in a usable version, and really writing a report."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.check_result import FAIL, OK, WARN, CheckResult, last_line, output
from rlprof_ops.extras import installed_version
from rlprof_ops.host import processes
from rlprof_ops.words import duration, limit, size

_HANGS = "2022."
_BOUND_S = 60.0


def findings(quick: bool = False) -> Iterator[CheckResult]:
    """Whether nsys is here and gives a report. `quick` leaves out the trial, and all that comes before it."""
    if quick:
        return
    path = nsys_cli.find()
    if path is None:
        named = os.environ.get(env_names.NSYS)
        yield CheckResult(
            "nsys",
            WARN,
            f"RLPROF_NSYS={named!r} is not there" if named else "not on PATH",
            "needed for nsight captures: module load, install Nsight Systems, or set RLPROF_NSYS; torch"
            " captures work without",
        )
        return
    code, text = output([path, "--version"], seconds=30)
    found = re.search(r"(\d{4}\.\S+)", text)
    version = found[1] if found else ""
    if code or not version:
        yield CheckResult(
            "nsys",
            FAIL,
            f"{path} --version: {last_line(text)}",
            "install Nsight Systems again, or set RLPROF_NSYS to another",
        )
        return
    if version.startswith(_HANGS):
        yield CheckResult(
            "nsys",
            FAIL,
            f"{version} ({path}) hangs in most runs of short programs",
            "use 2023.1 or newer; set RLPROF_NSYS",
        )
        return
    yield CheckResult("nsys", OK, f"{version} ({path})")
    yield from importing(nsys_cli.find_importer())
    first = trial(path)
    if first.state == OK:
        yield first
        return
    again = trial(path)  # nsys 2023.4 fails now and then on a busy machine; a job tries again too
    yield (
        again
        if again.state != OK
        else CheckResult(
            "nsys capture",
            WARN,
            f"{again.said}; before it, {first.said}",
            "nothing, if the machine is busy now",
        )
    )


def importing(importer: Path | None) -> Iterator[CheckResult]:
    """Whether what makes reports of raw captures has its libraries, which an image may lack that nsys is
    mounted into.
    """
    late = (
        "reports of windows that are open when a worker is killed are imported by `rlprof harvest` elsewhere"
    )
    if importer is None:
        yield CheckResult("nsys import", WARN, "no QdstrmImporter beside this nsys", late)
        return
    _, text = output(["ldd", str(importer)], seconds=30)
    missing = sorted(
        {line.split()[0] for line in text.splitlines() if line.rstrip().endswith("=> not found")}
    )
    if missing:
        fix = f"install them in the image; until then {late}"
        yield CheckResult("nsys import", WARN, f"{importer} lacks {', '.join(missing)}", fix)


def trial(path: str) -> CheckResult:
    """One second in a session, as a job takes it: the report must be there when `nsys stop` returns."""
    folder = Path(tempfile.mkdtemp(prefix="rlprof-doctor-"))
    session = f"rlprof-doctor-{os.getpid()}"
    report = folder / "trial.nsys-rep"
    env = nsys_cli.client_env(os.environ) | {"TMPDIR": str(folder)}  # nsys finds a session through TMPDIR
    # Its input is a pipe of ours, so it ends with us whatever happens.
    launched = subprocess.Popen(
        [path, "launch", f"--session-new={session}", "-t", "nvtx", sys.executable, "-c", _RANGES],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env=env,
    )  # fmt: skip
    try:
        began = time.monotonic()
        problem = _window(path, session, report, env)
        took = time.monotonic() - began
        if not problem and not report.exists():
            problem = "nsys stop ended well and wrote none"
        found = nsys_cli.check(report) if not problem else None
        if found is None or found.state != "ok":
            why = problem or (f"the report is {found.state}: {found.reason}" if found else "")
            return CheckResult(
                "nsys capture",
                FAIL,
                f"a 1 s window gave no report: {why}",
                "run the same by hand: nsys launch, start, stop; nsys status -e names missing permissions",
            )
        lost = _lost_ranges(path, report, env)
        if lost:
            return lost
        return CheckResult(
            "nsys capture",
            OK,
            f"a 1 s window gave a report of {size(report.stat().st_size)} ({duration(took * 1e9)} with"
            " start and stop)",
        )
    finally:
        output([path, "shutdown", "--kill=sigkill", f"--session={session}"], seconds=20, env=env)
        launched.kill()
        launched.wait(timeout=10)
        # nsys' agent is a session of its own, and stays where the shutdown has failed.
        processes.end(processes.started_with(f"TMPDIR={folder}"), grace_s=2)
        shutil.rmtree(folder, ignore_errors=True)


# What the trial records: ranges as our runtime writes them, as long as its input is open.
_RANGES = """
import sys, threading, time
def ranges():
    try:
        import nvtx
    except ImportError:
        return
    while True:
        token = nvtx.start_range("rlprof doctor", domain="rlprof")
        time.sleep(0.05)
        nvtx.end_range(token)
threading.Thread(target=ranges, daemon=True).start()
sys.stdin.read()
"""
_PUSH_POP, _START_END = 59, 60  # NVTX_EVENTS.eventType of an export


def _lost_ranges(path: str, report: Path, env: Mapping[str, str]) -> CheckResult | None:
    """A finding when nvtx is here and the report has none of its ranges: nvtx from 0.2.12 on hands nsys
    2023.4
    nothing.
    """
    version = installed_version("nvtx")
    if version is None:
        return None
    database = report.with_suffix(".sqlite")
    code, text = output(
        [path, "export", "--type=sqlite", f"--output={database}", str(report)], seconds=_BOUND_S, env=env
    )
    if code:
        return CheckResult("nsys capture", WARN, f"nsys export: {last_line(text)}", "run nsys export by hand")
    if _count_ranges(database):
        return None
    return CheckResult(
        "nsys capture",
        FAIL,
        f"nsys records none of the ranges of nvtx {version}: reports would have no phases",
        "pip install 'nvtx>=0.2.10,<0.2.12', or take a newer nsys",
    )


def _count_ranges(database: Path) -> int:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        query = "SELECT COUNT(*) FROM NVTX_EVENTS WHERE eventType IN (?, ?)"
        (count,) = connection.execute(query, (_PUSH_POP, _START_END)).fetchone()
        return int(count)
    except sqlite3.Error:
        return 0
    finally:
        connection.close()


def _window(path: str, session: str, report: Path, env: Mapping[str, str]) -> str:
    """Why the window was not taken, or nothing."""
    deadline = time.monotonic() + _BOUND_S
    # `nsys start` of a session that is not there yet succeeds too, and records nothing.
    while session not in output([path, "sessions", "list"], seconds=30, env=env)[1]:
        if time.monotonic() > deadline:
            return f"nsys launch opened no session within {limit(_BOUND_S)}"
        time.sleep(0.3)
    code, text = output(
        [path, "start", f"--session={session}", "-o", str(report), "-s", "none", "--cpuctxsw=none"],
        seconds=_BOUND_S,
        env=env,
    )
    if code:
        return f"nsys start: {last_line(text)}"
    time.sleep(1)
    code, text = output([path, "stop", f"--session={session}"], seconds=_BOUND_S, env=env)
    return f"nsys stop: {last_line(text)}" if code else ""
