"""Sync against what NeMo RL's ray.sub does (`rsync -ahP` of the log folder in a loop) and against plain `cp`.

Both sides work on copies of the same tree on the same disk, one after the other; CPU is user + system of
the process and its children.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.harness import PACKAGE, Run

from rlprof_ops.collect.sync.sync_pass import Syncer
from rlprof_ops.redact import redact_log
from rlprof_ops.redact.binary_files import places

QUICK = {"files": 100, "report_mib": 4, "secrets_mib": 4, "log_mib": 1}
PASSES = 5
LOG_LINES = {
    "log, no word of a secret": "(PolicyWorker pid=4711) step 12: loss 0.4711, lr 1e-06, grad norm 1.25, 4 s",
    "log, words that may be one": "(PolicyWorker pid=4711) step 12: 819 tokens/s, max_tokens=512, prompt_key",
    "log, a secret in each line": "env: {'HF_TOKEN': 'hf_abcdefgh12345678', 'N': '17', 'PATH': '/usr/bin'}",
}
Times = tuple[float, float]  # wall and CPU seconds


def bench(
    run: Run, *, files: int = 10_000, report_mib: int = 1024, secrets_mib: int = 512, log_mib: int = 16
) -> None:
    bench_passes(run, files)
    bench_report(run, report_mib)
    bench_secrets(run, secrets_mib, log_mib)


def cpu_s() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def timed(work: Callable[[], object]) -> Times:
    wall, cpu = time.perf_counter(), cpu_s()
    work()
    return time.perf_counter() - wall, cpu_s() - cpu


def make_tree(node: Path, files: int) -> list[Path]:
    """Half logs of Ray, half finished reports; returns the logs."""
    logs = []
    for number in range(files):
        folder = node / ("ray/session_1/logs" if number % 2 else f"profiles/torch/w/rank{number % 100}")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (f"worker-{number}.out" if number % 2 else f"{number}.pt.trace.json.gz")
        path.write_bytes(os.urandom(2000))
        if number % 2:
            logs.append(path)
    return logs


def grow(logs: list[Path]) -> None:
    for path in logs[:20]:
        with open(path, "ab") as stream:
            stream.write(b"one more line\n")


def rsync(node: Path, target: Path, *more: str) -> None:
    """One turn of the loop: NeMo RL's flags, for the same folders."""
    for folder in ("ray/session_1/logs", "profiles"):
        (target / folder).mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["rsync", "-ahP", *more, f"{node / folder}/", f"{target / folder}/"],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def settle(path: Path) -> None:
    subprocess.run(["sync", "-f", str(path)], check=True)


def bench_passes(run: Run, files: int) -> None:
    base, node = run.folder, run.folder / "node"
    logs = make_tree(node, files)
    ours, theirs, flushed = (base / name for name in ("ours", "theirs", "flushed"))
    for folder in (ours, theirs, flushed):
        folder.mkdir()
    settle(base)
    syncer = Syncer(node, ours, "n1")
    first_ours, first_theirs = timed(syncer.pass_), timed(lambda: rsync(node, theirs))
    time.sleep(2.1)
    syncer.pass_()
    found: dict[str, tuple[list[Times], list[Times]]] = {
        "nothing changed": ([], []),
        "20 logs grew": ([], []),
    }
    for _ in range(PASSES):
        for name, sides in found.items():
            if name != "nothing changed":
                grow(logs)
            sides[0].append(timed(syncer.pass_))
            sides[1].append(timed(lambda: rsync(node, theirs)))
    settle(base)
    first_flushed = timed(lambda: rsync(node, flushed, "--fsync"))
    run.say(f"{files} files, median of {PASSES} passes; system calls of an idle pass: {syscalls(node, ours)}")
    run.head(
        "pass" + " " * 27, "ours wall ms", "rsync wall ms", "ratio", "ours CPU ms", "rsync CPU ms", "ratio"
    )
    rows = {name: (median(sides[0]), median(sides[1])) for name, sides in found.items()}
    rows |= {"first (ours is flushed to disk)": (first_ours, first_theirs)}
    for name, (own, other) in (rows | {"first, rsync with --fsync": (first_ours, first_flushed)}).items():
        cells = [
            (f"{a * 1e3:.1f}", f"{b * 1e3:.1f}", f"{a / b:.2f}") for a, b in zip(own, other, strict=True)
        ]
        run.row(name, *cells[0], *cells[1])


def median(rows: Sequence[Times]) -> Times:
    return statistics.median(wall for wall, _ in rows), statistics.median(cpu for _, cpu in rows)


def syscalls(node: Path, ours: Path) -> str:
    """Counted by strace between two empty markers, when strace is there."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    code = (
        f"import os, sys; sys.path.insert(0, {str(PACKAGE)!r})\nfrom"
        f" rlprof_ops.collect.sync.sync_pass import Syncer\ns = Syncer({str(node)!r}, {str(ours)!r},"
        " 'n1')\ns.pass_(); s.pass_()\nos.getpgid(0)\ns.pass_()\nos.getpgid(0)"
    )
    with tempfile.NamedTemporaryFile() as log:
        subprocess.run(
            ["strace", "-f", "-o", log.name, sys.executable, "-c", code],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        lines = Path(log.name).read_text(errors="replace").splitlines()
    marks = [index for index, line in enumerate(lines) if "getpgid(0)" in line]
    return str(marks[1] - marks[0] - 1) if len(marks) == 2 else "not counted"


def write_random(path: Path, size_mib: int) -> None:
    with open(path, "wb") as stream:
        for _ in range(size_mib):
            stream.write(os.urandom(1 << 20))


def bench_report(run: Run, size_mib: int) -> None:
    base = run.folder
    node, target = base / "big", base / "bigrun"
    (node / "profiles/nsight").mkdir(parents=True)
    source, copy = node / "profiles/nsight/a.nsys-rep", base / "copy"
    write_random(source, size_mib)

    def copied(command: str) -> Times:
        settle(base)
        found = timed(lambda: subprocess.run(["bash", "-c", command, "x", source, copy], check=True))
        copy.unlink()
        return found

    def sent(read_back: bool = True) -> tuple[float, float, float]:
        settle(base)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        return fresh(node, target, read_back)

    rows: dict[str, list[Times]] = {}
    for _ in range(5):
        rows.setdefault("cp", []).append(copied('cp "$1" "$2" && sync "$2"'))
        arrived, done, cpu = sent()
        rows.setdefault("sync (arrived)", []).append((arrived, cpu))
        rows.setdefault("sync (digest too)", []).append((done, cpu))
        _, done, cpu = sent(read_back=False)
        rows.setdefault("sync, not read back", []).append((done, cpu))
        summed = copied('cp "$1" "$2" && sync "$2" && sha256sum "$1" >/dev/null')
        rows.setdefault("cp + sha256sum", []).append(summed)
    run.say(f"\none finished report of {size_mib} MiB, flushed on both sides, median of 5")
    run.head("side" + " " * 17, "s    ", "MiB/s", "CPU s", "its time / ours")
    ours = median(rows["sync (arrived)"])
    for name, values in rows.items():
        wall, cpu = median(values)
        run.row(name, f"{wall:.2f}", f"{size_mib / wall:.0f}", f"{cpu:.2f}", f"{wall / ours[0]:.2f}")


def fresh(node: Path, target: Path, read_back: bool = True) -> tuple[float, float, float]:
    """(seconds until the report is there, until the pass has ended, CPU seconds) of a pass with nothing
    sent before.
    """
    shutil.rmtree(node / "sync", ignore_errors=True)
    (node / "run_folder").unlink(missing_ok=True)  # of the folder that stood there before
    syncer = Syncer(node, target, "n1")
    if not read_back:
        syncer.sender.is_whole = lambda out, copied: True
    arrived: list[float] = []
    put = syncer.sender._put

    def noting(*arguments, **more):
        try:
            return put(*arguments, **more)
        finally:
            arrived.append(time.perf_counter())

    syncer.sender._put = noting  # the moment of the rename
    started, cpu = time.perf_counter(), cpu_s()
    report = syncer.pass_()
    ended = time.perf_counter()
    assert report.complete and report.copied == 1, report
    return arrived[0] - started, ended - started, cpu_s() - cpu


def bench_secrets(run: Run, report_mib: int, log_mib: int) -> None:
    """What keeping secrets in costs: reports are searched for exact values, logs for names and shapes too."""
    report = run.folder / "a.nsys-rep"
    write_random(report, report_mib)
    run.say(
        f"\nsecrets, a report of {report_mib} MiB in memory and logs of {log_mib} MiB, median of {PASSES}"
    )
    run.head("what" + " " * 22, "MB/s wall", "MB/s CPU")

    def row(name: str, size_bytes: int, work: Callable[[], object]) -> None:
        wall, cpu = median([timed(work) for _ in range(PASSES)])
        run.row(name, f"{size_bytes / wall / 1e6:.0f}", f"{size_bytes / max(cpu, 1e-9) / 1e6:.0f}")

    with open(report, "rb") as stream:
        for count in (1, 5, 20, 100):
            values = {f"{number:03}-{os.urandom(16).hex()}".encode() for number in range(count)}
            row(f"report, {count} values", report_mib << 20, lambda v=values: places(stream.fileno(), v))
    for name, line in LOG_LINES.items():
        data = (line.encode() + b"\n") * ((log_mib << 20) // (len(line) + 1))
        secrets = frozenset({f"hf_{os.urandom(8).hex()}" for _ in range(5)})
        row(name, len(data), lambda d=data, v=secrets: redact_log(d, v))
