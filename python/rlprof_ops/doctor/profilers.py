"""nsys and rocprof-sys: there, in a usable version, allowed to record, and really writing a report."""

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
from rlprof_ops.backends.rocprof_sys import front_end
from rlprof_ops.doctor.check_result import FAIL, OK, WARN, CheckResult, last_line, output
from rlprof_ops.host import processes
from rlprof_ops.host.gpus import has_nvidia_driver
from rlprof_ops.words import duration, limit, size

_HANGS = "2022."
_BOUND_S = 60.0
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_NVIDIA_PARAMETERS = Path("/proc/driver/nvidia/params")
# Processes that hold a GPU's profiling counters, or record others: a second user of CUPTI gets nothing or an
# error.
_OTHER_USERS = {
    "nv-hostengine": "dcgmi profile --pause while you profile, and --resume after",
    "dcgm-exporter": "dcgmi profile --pause while you profile, and --resume after",
    "ncu": "end it: Nsight Compute takes the counters for itself",
    "nvprof": "end it",
}


def nsys(quick: bool = False) -> Iterator[CheckResult]:
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
    from importlib import metadata

    try:
        version = metadata.version("nvtx")
    except metadata.PackageNotFoundError:
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


def rocprof(quick: bool = False) -> Iterator[CheckResult]:
    """Only where there is an AMD GPU: elsewhere nobody misses it."""
    try:
        found = front_end.find()
    except front_end.FrontEndError as error:
        needed = os.path.exists("/dev/kfd") or os.environ.get(env_names.ROCPROF_SYS)
        yield CheckResult(
            "rocprof-sys",
            WARN if needed else OK,
            str(error) if needed else "not here, and no AMD GPU that would need it",
            "load ROCm's module, or set RLPROF_ROCPROF_SYS" if needed else "",
        )
        return
    yield CheckResult("rocprof-sys", OK, str(found)[:200])


def perf_event_paranoid() -> Iterator[CheckResult]:
    """2 allows a user to sample own processes, 1 the kernel's side too (kernel documentation,
    perf-security).
    """
    try:
        value = int(_PARANOID.read_text())
    except (OSError, ValueError):
        yield CheckResult(
            "perf_event_paranoid", WARN, "cannot be read", "CPU samples (nsys -s process-tree) may be missing"
        )
        return
    fine = value <= 2 or os.getuid() == 0
    yield CheckResult(
        "perf_event_paranoid",
        OK if fine else WARN,
        str(value),
        (
            ""
            if fine
            else (
                "above 2 nsys takes no CPU samples: sysctl kernel.perf_event_paranoid=2, or leave the option"
                " s off"
            )
        ),
    )


def cupti() -> Iterator[CheckResult]:
    """NVIDIA's rule: RmProfilingAdminOnly=1 keeps GPU counters to root
    (developer.nvidia.com/ERR_NVGPUCTRPERM).
    """
    if not has_nvidia_driver():
        yield CheckResult("GPU counters", OK, "no NVIDIA driver here, so nothing to permit")
        return
    try:
        found = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", _NVIDIA_PARAMETERS.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        yield CheckResult(
            "GPU counters",
            WARN,
            f"{_NVIDIA_PARAMETERS} does not tell",
            "CUDA traces need no counters; gpu-metrics-* do",
        )
        return
    closed = found[1] == "1" and os.getuid() != 0
    yield CheckResult(
        "GPU counters",
        WARN if closed else OK,
        "for administrators only" if closed else "allowed",
        (
            "CUDA and NVTX traces work; for gpu-metrics-* the operator sets"
            " NVreg_RestrictProfilingToAdminUsers=0"
            if closed
            else ""
        ),
    )


def other_users(proc: Path = Path("/proc")) -> Iterator[CheckResult]:
    """Processes that share a GPU's profiling interface with us."""
    names: dict[str, str] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                names[entry.name] = (entry / "comm").read_text().strip()
            except OSError:
                continue  # it has ended
    found = sorted({name for name in names.values() if name in _OTHER_USERS})
    if not found:
        yield CheckResult(
            "other profilers", OK, "no DCGM, ncu or nvprof runs here (as far as this user sees)"
        )
    for name in found:
        pids = [pid for pid, other in names.items() if other == name]
        yield CheckResult(
            "other profilers",
            WARN,
            f"{name} runs (pid {', '.join(pids[:3])}) and may hold the GPU's counters",
            _OTHER_USERS[name],
        )
