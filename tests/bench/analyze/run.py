"""Reading, explaining and merging traces, against HolisticTraceAnalysis, nsys-ai and json: both sides in one
run.

    python tests/bench/analyze/run.py --tools ../shared/tools --hta <python with HolisticTraceAnalysis==0.5.0
    and pandas<3>
        [--nsys-ai <nsys-ai of the same venv>] [--events 1000000] [--only torch|memory|nsys|zip|ranks]

Every side runs in a process of its own; wall and CPU seconds and the peak of its memory come from the kernel.
A side whose tool is absent is left out, saying so. AMD TraceLens is not published as a package (one of that
name is another project) and is left out for that.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]

OURS = """
import sys
from pathlib import Path
from rlprof_ops.analyze.run.identity import ReportFile
from rlprof_ops.analyze.run.summary import summarise_file
path = Path(sys.argv[1])
report = ReportFile(path.name, "torch", "policy_worker", 0, "", None, None, None, None, path.stat().st_size)
for s in summarise_file(path.parent, report, cache=False):
    print(f"{s.events} events, {len(s.steps)} steps, {len(s.phases)} phase rows, idle {sum(d.times.idle_ns for d in s.devices) / 1000:.0f} us", file=sys.stderr)
"""
THROUGH_SQLITE = """
from rlprof_ops.analyze.readers.nsys_tables import Export
Export._places = lambda self, table, columns: None
"""
HTA = """
import sys, logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
a = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
if len(sys.argv) < 3:
    idle = a.get_temporal_breakdown(visualize=False)
    a.get_gpu_kernel_breakdown(visualize=False)
    a.get_comm_comp_overlap(visualize=False)
    a.get_idle_time_breakdown(ranks=[0], visualize=False)
    a.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)
    print(f"idle {float(idle['idle_time(us)'].iloc[0]):.0f} us (rounded to whole microseconds, last step dropped)", file=sys.stderr)
"""
ZIP = """
import sys
from pathlib import Path
from rlprof_ops.analyze.timeline.archive import ArchiveMember, base_ns, write_archive
files = [Path(p) for p in sys.argv[2:]]
members = [ArchiveMember(f"{i:04d}_policy_worker_rank{i}.json", f"n0/policy_worker/{i}", base_ns(p), p) for i, p in enumerate(files)]
assert not write_archive(Path(sys.argv[1]), members, {}, lambda _: True)
"""
MERGE = """
import gzip, json, sys
merged = []
for i, p in enumerate(sys.argv[2:]):
    with gzip.open(p) as f:
        for e in json.load(f)["traceEvents"]:
            if isinstance(e.get("pid"), int): e["pid"] += (i + 1) * 100000
            merged.append(e)
with gzip.open(sys.argv[1], "wt", compresslevel=6) as f:
    json.dump({"traceEvents": merged}, f)
"""


@dataclass(frozen=True)
class Cost:
    wall_s: float
    cpu_s: float
    peak_gib: float

    def __str__(self) -> str:
        return f"{self.wall_s:7.2f} s wall {self.cpu_s:7.2f} s CPU {self.peak_gib:6.2f} GiB"


def run(argv: Sequence[str], runs: int = 1, **variables: str) -> Cost:
    """The best of `runs` by wall time."""
    best: Cost | None = None
    for _ in range(runs):
        begun = time.monotonic()
        environment = os.environ | {"PYTHONPATH": str(REPO / "python")} | variables
        process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{argv[0]} ended with {process.returncode}")
        cost = Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / (1 << 20))
        best = cost if best is None or cost.wall_s < best.wall_s else best
    assert best is not None
    return best


def show(label: str, cost: Cost, against: Cost | None = None) -> None:
    ratio = (
        ""
        if against is None
        else (
            f"   ours is {cost.wall_s / against.wall_s:.1f} x faster (CPU {cost.cpu_s / against.cpu_s:.1f}"
            f" x), {cost.peak_gib / against.peak_gib:.0f} x less memory"
        )
    )
    print(f"  {label:44} {cost}{ratio}", flush=True)


def made_trace(tools: Path, folder: Path, events: int, rank: int = 0) -> Path:
    path = folder / f"t{events}_{rank}.json.gz"
    if not path.exists():
        subprocess.run(
            [
                sys.executable,
                str(tools / "make_torch_trace.py"),
                "--out",
                str(path),
                "--events",
                str(events),
                "--rank",
                str(rank),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return path


def bench_torch(args: argparse.Namespace, folder: Path) -> None:
    trace = made_trace(args.tools, folder, args.events)
    print(
        f"torch trace of {args.events:,} events ({trace.stat().st_size / 1e6:.1f} MB gz) -> columns, steps,"
        " phases, idle, kernels"
    )
    ours = run([sys.executable, "-c", OURS, str(trace)], args.runs)
    show("ours", ours)
    show(
        "ours, without the scanner",
        run([sys.executable, "-c", OURS, str(trace)], args.runs, RLPROF_SCANNER="0"),
        ours,
    )
    if args.hta:
        show("HTA 0.5.0, parse alone", run([args.hta, "-c", HTA, str(trace), "parse"]), ours)
        show(
            "HTA 0.5.0, parse and five breakdowns",
            run([args.hta, "-c", HTA, str(trace)], min(args.runs, 2)),
            ours,
        )
        print(
            "  the same file, from the process's start to its end; HTA: temporal, kernel, overlap, idle and"
            " launch breakdowns;"
        )
        print(
            "  ours: GPU times and idle by cause of every step and phase, kernels and ops by phase,"
            " collectives, collective events"
        )
    else:
        print("  HTA left out: give --hta a Python that has HolisticTraceAnalysis==0.5.0 and pandas<3")


def bench_memory(args: argparse.Namespace, folder: Path) -> None:
    print("peak memory by size of the trace")
    for events in (args.events, 5 * args.events):
        show(
            f"ours, {events:,} events",
            run([sys.executable, "-c", OURS, str(made_trace(args.tools, folder, events))]),
        )


def bench_nsys(args: argparse.Namespace, folder: Path) -> None:
    path = folder / f"n{args.events}.sqlite"
    subprocess.run(
        [sys.executable, str(args.tools / "make_nsys_sqlite.py"), str(path), str(args.events)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    print(f"nsys SQLite of {args.events:,} kernels -> kernel and phase tables")
    ours = run([sys.executable, "-c", OURS, str(path)], args.runs)
    show("ours", ours)
    show(
        "ours, every row through SQLite", run([sys.executable, "-c", THROUGH_SQLITE + OURS, str(path)]), ours
    )
    if args.nsys_ai:
        show("nsys-ai summary", run([args.nsys_ai, "summary", str(path)], min(args.runs, 2)), ours)
        print(
            "  (without a network part of nsys-ai's wall time is a DuckDB extension it fails to fetch; the"
            " CPU ratio is free of it)"
        )
    else:
        print("  nsys-ai left out: give --nsys-ai its program")


def bench_zip(args: argparse.Namespace, folder: Path) -> None:
    files = [str(made_trace(args.tools, folder, args.events, rank)) for rank in range(8)]
    print(f"one timeline of 8 traces of {args.events:,} events")
    ours = run([sys.executable, "-c", ZIP, str(folder / "ranks.zip"), *files], args.runs)
    show("ours, ranks.zip of 8 (traces known to be whole)", ours)
    merged = run([sys.executable, "-c", MERGE, str(folder / "merged.json.gz"), *files[:2]])
    show("json load, merge, dump of 2 (of 8: four times)", merged)
    print(f"  ours is {4 * merged.wall_s / ours.wall_s:.0f} x faster for 8")


def bench_ranks(args: argparse.Namespace, folder: Path) -> None:
    sys.path[:0] = [str(REPO), str(REPO / "python")]
    from tests.analyze.fake_run import make_run

    print("a report of many ranks, simulated traces of 3 steps and 600 kernels a rank")
    for ranks in (64, 128, 256, 512):
        run_folder = folder / f"ranks{ranks}"
        if not run_folder.exists():
            run_folder.mkdir()
            make_run(
                run_folder,
                ranks=ranks * 3 // 4,
                generation_ranks=ranks // 4,
                kernels=200,
                hosts=max(ranks // 8, 1),
            )
        command = [sys.executable, "-m", "rlprof_ops", "report", str(run_folder), "--json", "--no-cache"]
        for processes, jobs in (("one process", ["-j", "1"]), ("the default -j", [])):
            cost = run([*command, *jobs])
            size = (run_folder / "report.html").stat().st_size
            print(
                f"  {ranks:4} ranks, {processes:14} {cost}   {1000 * cost.wall_s / ranks:6.1f} ms wall a rank"
                f" {1000 * cost.cpu_s / ranks:6.1f} ms CPU a rank, page {size / 1e6:.2f} MB,"
                f" {size / ranks / 1e3:.2f} kB a rank",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tools", type=Path, default=REPO.parent / "shared" / "tools")
    parser.add_argument("--hta", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--nsys-ai", help="the nsys-ai program")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3, help="ours: best of this many")
    parser.add_argument("--only", choices=["torch", "memory", "nsys", "zip", "ranks"])
    parser.add_argument("--keep", type=Path, help="folder for the inputs, kept for the next run")
    args = parser.parse_args()
    if not (args.tools / "make_torch_trace.py").is_file():
        raise SystemExit(f"no make_torch_trace.py in {args.tools}: give --tools")
    print(
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; rerun: python tests/bench/analyze/run.py"
        f" {' '.join(sys.argv[1:])}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, bench in (
            ("torch", bench_torch),
            ("memory", bench_memory),
            ("nsys", bench_nsys),
            ("zip", bench_zip),
            ("ranks", bench_ranks),
        ):
            if args.only in (None, name):
                bench(args, folder)


if __name__ == "__main__":
    main()
