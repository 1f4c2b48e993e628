"""Reading, explaining and merging traces, against HolisticTraceAnalysis, nsys-ai and json.

--hta is a Python with HolisticTraceAnalysis==0.5.0 and pandas<3, --nsys-ai the program of that name,
--tools the folder with make_torch_trace.py and make_nsys_sqlite.py. Every side runs in a process of its
own, wall and CPU seconds and its peak of memory come from the kernel; ours is the best of --runs. A side
whose tool is absent is left out, saying so. AMD TraceLens is not published as a package (one of that name
is another project) and is left out for that.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Literal

from tests.analyze.fake_run import make_run
from tests.bench.harness import ROOT, Cost, Run, environment, spend

QUICK = {"events": 20_000, "runs": 1, "ranks": (8,)}
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
SCANNER = "from rlprof_ops.analyze.readers.scan.batches import unused; print(unused())"
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


HTA_SAYS = """HTA's breakdowns: temporal, kernel, overlap, idle, launch. Ours: GPU times and idle by cause of every
step and phase, kernels and ops by phase, collectives. Without a network part of nsys-ai's wall time is a DuckDB
extension it fails to fetch; the CPU ratio is free of it."""


def bench(
    run: Run,
    *,
    tools: Path = ROOT.parent / "shared" / "tools",
    hta: str = "",
    nsys_ai: str = "",
    events: int = 1_000_000,
    runs: int = 3,
    ranks: tuple[int, ...] = (64, 128, 256, 512),
    only: Literal["torch", "memory", "nsys", "nvtx", "zip", "ranks"] | None = None,
) -> None:
    if not (tools / "make_torch_trace.py").is_file():
        raise SystemExit(f"no make_torch_trace.py in {tools}: give --tools")
    made = Made(tools, run.folder)
    why = spend([sys.executable, "-c", SCANNER]).output.strip()
    run.expect(not why, f"traces are read with the compiled scanner{why and ': '}{why}")
    run.head("task", "side", "wall, CPU, memory at its peak", "its wall, CPU and memory / ours")
    for name, part in (
        ("torch", lambda: bench_torch(run, made, events, runs, hta)),
        ("memory", lambda: bench_memory(run, made, events)),
        ("nsys", lambda: bench_nsys(run, made, events, runs, nsys_ai)),
        ("nvtx", lambda: bench_nvtx(run, made, 3 * events, runs)),
        ("zip", lambda: bench_zip(run, made, events, runs)),
        ("ranks", lambda: bench_ranks(run, ranks)),
    ):
        if only in (None, name):
            part()
    run.say(HTA_SAYS)


class Made:
    """The inputs, made once."""

    def __init__(self, tools: Path, folder: Path) -> None:
        self._tools, self._folder = tools, folder

    def trace(self, events: int, rank: int = 0) -> Path:
        path = self._folder / f"t{events}_{rank}.json.gz"
        words = ("--out", path, "--events", str(events), "--rank", str(rank))
        return self._made(path, "make_torch_trace.py", *words)

    def export(self, events: int) -> Path:
        path = self._folder / f"n{events}.sqlite"
        return self._made(path, "make_nsys_sqlite.py", path, str(events))

    def operators(self, rows: int) -> Path:
        """An export with `rows` more ranges, each of a text of its own, as torch's emit_nvtx writes them."""
        path = self._folder / f"nvtx{rows}.sqlite"
        if not path.exists():
            shutil.copy(self.export(10_000), path)
            thread = (0x1000000000000 | (4242 << 24)) | 4242
            insert = "insert into NVTX_EVENTS(start, end, eventType, text, globalTid, domainId)"
            texts = (
                (i * 1000, i * 1000 + 700, f"aten::op_{i % 200}, op_id = {i}", thread) for i in range(rows)
            )
            with contextlib.closing(sqlite3.connect(path)) as export, export:
                export.executemany(f"{insert} values(?, ?, 59, ?, ?, 0)", texts)
        return path

    def _made(self, path: Path, tool: str, *words: str | Path) -> Path:
        if not path.exists():
            argv = [sys.executable, self._tools / tool, *words]
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        return path


def python(program: str, *words: str | Path, runs: int = 1, **variables: str) -> Cost:
    return spend([sys.executable, "-c", program, *words], environment(variables), runs=runs)


def side(run: Run, task: str, name: str, cost: Cost, ours: Cost | None = None) -> None:
    over = ""
    if ours is not None:
        memory = cost.peak_gib / ours.peak_gib
        over = f"{cost.wall_s / ours.wall_s:.1f}, CPU {cost.cpu_s / ours.cpu_s:.1f}, memory {memory:.1f}"
    run.row(task, name, cost, over)


def bench_torch(run: Run, made: Made, events: int, runs: int, hta: str) -> None:
    trace = made.trace(events)
    task = f"torch trace of {events:,} events ({trace.stat().st_size / 1e6:.1f} MB gz)"
    ours = python(OURS, trace, runs=runs)
    side(run, task, "ours", ours)
    side(run, task, "ours, without the scanner", python(OURS, trace, runs=runs, RLPROF_SCANNER="0"), ours)
    if not hta:
        run.row(task, "HTA 0.5.0", "left out: give --hta", "")
        return
    side(run, task, "HTA 0.5.0, parse alone", spend([hta, "-c", HTA, trace, "parse"]), ours)
    whole = spend([hta, "-c", HTA, trace], runs=min(runs, 2))
    side(run, task, "HTA 0.5.0, parse and five breakdowns", whole, ours)


def bench_memory(run: Run, made: Made, events: int) -> None:
    for size in (events, 5 * events):
        side(run, f"torch trace of {size:,} events", "ours", python(OURS, made.trace(size)))


def bench_nsys(run: Run, made: Made, events: int, runs: int, nsys_ai: str) -> None:
    path, task = made.export(events), f"nsys export of {events:,} kernels"
    ours = python(OURS, path, runs=runs)
    side(run, task, "ours", ours)
    side(run, task, "ours, every row through SQLite", python(THROUGH_SQLITE + OURS, path), ours)
    if nsys_ai:
        side(run, task, "nsys-ai summary", spend([nsys_ai, "summary", path], runs=min(runs, 2)), ours)
    else:
        run.row(task, "nsys-ai summary", "left out: give --nsys-ai", "")


def bench_nvtx(run: Run, made: Made, rows: int, runs: int) -> None:
    ours = python(OURS, made.operators(rows), runs=runs)
    side(run, f"nsys export of {rows:,} operators as ranges", "ours", ours)


def bench_zip(run: Run, made: Made, events: int, runs: int) -> None:
    files = [made.trace(events, rank) for rank in range(8)]
    ours = python(ZIP, run.folder / "ranks.zip", *files, runs=runs)
    side(run, f"8 traces of {events:,} events", "ours, ranks.zip", ours)
    merged = python(MERGE, run.folder / "merged.json.gz", *files[:2])
    side(run, "2 of them (for 8: four times)", "json load, merge, dump", merged, ours)


def bench_ranks(run: Run, sizes: tuple[int, ...]) -> None:
    """Simulated traces of 3 steps and 600 kernels a rank."""
    for ranks in sizes:
        folder = run.folder / f"ranks{ranks}"
        if not folder.exists():
            folder.mkdir()
            hosts = max(ranks // 8, 1)
            make_run(folder, ranks=ranks * 3 // 4, generation_ranks=ranks // 4, kernels=200, hosts=hosts)
        command = [sys.executable, "-m", "rlprof_ops", "report", folder, "--json", "--no-cache"]
        one = spend([*command, "-j", "1"])
        size = (folder / "report.html").stat().st_size
        task = f"report of {ranks} ranks, page {size / 1e6:.2f} MB, {size / ranks / 1e3:.2f} kB a rank"
        ours = spend(command)
        side(run, task, "the default -j", ours)
        side(run, task, "one process", one, ours)
