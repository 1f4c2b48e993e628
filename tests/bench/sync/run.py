"""Sync against what NeMo RL's ray.sub does (`rsync -ahP` of the log folder in a loop) and against plain `cp`.

Rerun: python tests/bench/sync/run.py [--files 10000] [--report-mib 1024] [--folder DIR] Both sides work on
copies of the same tree on the same disk, one after the other; CPU is user + system of the process and its
children.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python"))

from rlprof_ops.collect.sync.sync_pass import Syncer
from rlprof_ops.redact import redact_log
from rlprof_ops.redact.binary_files import places

PASSES = 5
SECRETS_MIB, LOG_MIB = 512, 16
LOG_LINES = {
    "log, no word of a secret": "(PolicyWorker pid=4711) step 12: loss 0.4711, lr 1e-06, grad norm 1.25, 4.1 s",
    "log, words that may be one": "(PolicyWorker pid=4711) step 12: 8192 tokens/s, max_tokens=512, prompt_key=x",
    "log, a secret in each line": "env: {'HF_TOKEN': 'hf_abcdefgh12345678', 'N': '17', 'PATH': '/usr/bin'}",
}


def cpu_s() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def timed(work) -> tuple[float, float]:
    """(wall seconds, CPU seconds) of one call."""
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


def bench_passes(base: Path, files: int) -> None:
    node = base / "node"
    logs = make_tree(node, files)
    ours, theirs = base / "ours", base / "theirs"
    ours.mkdir()
    theirs.mkdir()
    settle(base)
    syncer = Syncer(node, ours, "n1")
    first_ours, first_theirs = timed(syncer.pass_), timed(lambda: rsync(node, theirs))
    time.sleep(2.1)
    syncer.pass_()
    idle: dict[str, list[tuple[float, float]]] = {"ours": [], "rsync": []}
    little: dict[str, list[tuple[float, float]]] = {"ours": [], "rsync": []}
    for _ in range(PASSES):
        idle["ours"].append(timed(syncer.pass_))
        idle["rsync"].append(timed(lambda: rsync(node, theirs)))
        grow(logs)
        little["ours"].append(timed(syncer.pass_))
        little["rsync"].append(timed(lambda: rsync(node, theirs)))
    flushed = base / "flushed"
    flushed.mkdir()
    settle(base)
    first_flushed = timed(lambda: rsync(node, flushed, "--fsync"))
    print(f"{files} files, median of {PASSES} passes (ms)")
    print(
        f"{'pass':<34}{'ours wall':>10}{'rsync wall':>11}{'ratio':>7}{'ours CPU':>10}{'rsync CPU':>10}{'ratio':>7}"
    )
    for name, rows in (("nothing changed", idle), ("20 logs grew", little)):
        show(name, median(rows["ours"]), median(rows["rsync"]))
    show("first (ours is flushed to disk)", first_ours, first_theirs)
    show("first, rsync with --fsync", first_ours, first_flushed)
    print(f"system calls of an idle pass: {syscalls(node, ours)}")


def median(rows: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(wall for wall, _ in rows), statistics.median(cpu for _, cpu in rows)


def show(name: str, ours: tuple[float, float], theirs: tuple[float, float]) -> None:
    print(
        f"{name:<34}{ours[0] * 1e3:>10.1f}{theirs[0] * 1e3:>11.1f}{ours[0] / theirs[0]:>7.2f}"
        f"{ours[1] * 1e3:>10.1f}{theirs[1] * 1e3:>10.1f}{ours[1] / theirs[1]:>7.2f}"
    )


def syscalls(node: Path, ours: Path) -> str:
    """Counted by strace between two empty markers, when strace is there."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    code = (
        f"import os, sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[3] / 'python')!r})\nfrom"
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


def bench_report(base: Path, size_mib: int) -> None:
    node, target = base / "big", base / "bigrun"
    (node / "profiles/nsight").mkdir(parents=True)
    target.mkdir()
    source = node / "profiles/nsight/a.nsys-rep"
    with open(source, "wb") as stream:
        for _ in range(size_mib):
            stream.write(os.urandom(1 << 20))
    rows: dict[str, list[tuple[float, float]]] = {
        "sync (arrived)": [],
        "sync (digest too)": [],
        "sync, not read back": [],
        "cp": [],
        "cp + sha256sum": [],
    }
    for number in range(5):
        settle(base)
        rows["cp"].append(
            timed(
                lambda n=number: subprocess.run(
                    ["bash", "-c", 'cp "$1" "$2" && sync "$2"', "x", source, base / f"cp{n}"], check=True
                )
            )
        )
        (base / f"cp{number}").unlink()
        settle(base)
        arrived, done, cpu = fresh(node, target)
        rows["sync (arrived)"].append((arrived, cpu))
        rows["sync (digest too)"].append((done, cpu))
        shutil.rmtree(target)
        target.mkdir()
        settle(base)
        _, done, cpu = fresh(node, target, read_back=False)
        rows["sync, not read back"].append((done, cpu))
        shutil.rmtree(target)
        target.mkdir()
        settle(base)
        rows["cp + sha256sum"].append(
            timed(
                lambda n=number: subprocess.run(
                    [
                        "bash",
                        "-c",
                        'cp "$1" "$2" && sync "$2" && sha256sum "$1" >/dev/null',
                        "x",
                        source,
                        base / f"cp{n}",
                    ],
                    check=True,
                )
            )
        )
        (base / f"cp{number}").unlink()
    print(f"\none finished report of {size_mib} MiB, flushed on both sides, median of 5")
    ours = median(rows["sync (arrived)"])
    for name, values in rows.items():
        wall, cpu = median(values)
        print(
            f"{name:<24}{wall:>7.2f} s  {size_mib / wall:>7.0f} MiB/s  CPU {cpu:>5.2f} s  its time / ours:"
            f" {wall / ours[0]:.2f}"
        )


def fresh(node: Path, target: Path, read_back: bool = True) -> tuple[float, float, float]:
    """(seconds until the report is there, until the pass has ended, CPU seconds) of a pass with nothing
    sent before.
    """
    shutil.rmtree(node / "sync", ignore_errors=True)
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


def bench_secrets(base: Path) -> None:
    """What keeping secrets in costs: reports are searched for exact values, logs for names and shapes too."""
    report = base / "a.nsys-rep"
    with open(report, "wb") as stream:
        for _ in range(SECRETS_MIB):
            stream.write(os.urandom(1 << 20))
    print(f"\nsecrets, a report of {SECRETS_MIB} MiB in memory and logs of {LOG_MIB} MiB, median of {PASSES}")
    with open(report, "rb") as stream:
        for count in (1, 5, 20, 100):
            values = {f"{number:03}-{os.urandom(16).hex()}".encode() for number in range(count)}
            wall, cpu = median([timed(lambda v=values: places(stream.fileno(), v)) for _ in range(PASSES)])
            gigabytes = SECRETS_MIB * 2**20 / 1e9
            print(
                f"{f'report, {count} values':<34}{gigabytes / wall:>7.2f} GB/s wall{gigabytes / cpu:>7.2f} CPU"
            )
    for name, line in LOG_LINES.items():
        data = (line.encode() + b"\n") * ((LOG_MIB << 20) // (len(line) + 1))
        values = frozenset({f"hf_{os.urandom(8).hex()}" for _ in range(5)})
        wall, cpu = median([timed(lambda d=data, v=values: redact_log(d, v)) for _ in range(PASSES)])
        print(f"{name:<34}{len(data) / wall / 1e6:>7.0f} MB/s wall{len(data) / cpu / 1e6:>7.0f} CPU")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--report-mib", type=int, default=1024)
    parser.add_argument("--folder", default=None, help="where to work; default: the temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        bench_passes(Path(folder), arguments.files)
        bench_report(Path(folder), arguments.report_mib)
        bench_secrets(Path(folder))


if __name__ == "__main__":
    main()
