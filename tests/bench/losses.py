"""How many finished windows are lost at a job's end: ray.sub against NeMo RL's way.

That is an rsync loop, no last pass, no drain. Both sides run the same trainer with the same faults, each in
a sandbox of its own, side by side; the second one has Ray's own nsight plugin and capture ranges, and syncs
every two seconds, as ours (its own default is not at all, its documents say 30). A window counts when its
last step was over before the fault, or before the job's end where training goes on after the fault, and its
report is in the job's folder and nsys can read it. Where the storage fails to the end, ours has named a
command for each node, and a person runs it; the other side names none. --paths: some of the fault matrix,
ok,driver-exits,… (default: all).
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench.harness import PACKAGE, Run
from tests.faults.cells import CELLS, Cell
from tests.faults.job import AgentLost, Job, trainer_command
from tests.faults.outcome import bring_home, start
from tests.sandbox import Sandbox, SandboxError

from rlprof_ops.collect.drain.nsys_contents import ExportFailed, look

NEEDS = ("slurm", "nsys")
QUICK = {"paths": ("driver-exits",)}
PATHS = {cell.name.replace(" ", "-"): cell for cell in CELLS}


def bench(run: Run, *, paths: tuple[str, ...] = tuple(PATHS)) -> None:
    rows: dict[str, dict[str, dict]] = {"ours": {}, "rsync loop": {}}
    with ThreadPoolExecutor(2) as pool:
        for done in [
            pool.submit(lane, side, name.replace(" ", "-"), [PATHS[path] for path in paths], rows[name])
            for name, side in (("ours", ours), ("rsync loop", theirs))
        ]:
            done.result()
    run.head("path" + " " * 22, "side      ", "windows home", "unreadable", "Slurm         ", "end s")
    for path in paths:
        for name, found in rows.items():
            run.row(path, name, *shown(found[PATHS[path].name]))
    for name, found in rows.items():
        home, of = (sum(row[key] for row in found.values()) for key in ("home", "of"))
        run.say(f"{name}: {of - home} of {of} finished windows lost")


def ours(sandbox: Sandbox, cell: Cell, base: Path) -> Job:
    return start(sandbox, cell, base)


def theirs(sandbox: Sandbox, cell: Cell, base: Path) -> Job:
    base.mkdir(parents=True)
    nsys = cell.prepare(base).get("RLPROF_NSYS")
    command, progress = trainer_command(
        sandbox, base, cell.local, "--style", "ray-nsight", "--fault", cell.fault, *cell.trainer
    )
    env = {
        "COMMAND": command,
        "VENV": sys.prefix,
        "BASE_LOG_DIR": str(base),
        "FREQUENCY": "2",
        "PYTHONPATH": str(PACKAGE),
        **({"PATH": f"{Path(nsys).parent}:{os.environ['PATH']}"} if nsys else {}),
    }
    job = sandbox.sbatch(
        ["-N2", "--gres=gpu:2", "--no-requeue", *cell.args, Path(__file__).with_suffix(".sub")],
        env=env,
        cwd=base,
    )
    return Job(sandbox, job, base, progress, stand_in=True)


def home(job: Job) -> tuple[set[tuple[int, int]], int]:
    """(process, first step) of every window that a readable report holds, and the number of files that are
    no report.
    """
    found: set[tuple[int, int]] = set()
    broken = 0
    for path in job.folder.rglob("*.nsys-rep"):
        if path.name.startswith("empty"):
            continue
        try:
            contents = look(path)
        except ExportFailed:
            broken += 1
            continue
        found |= {(pid, min(contents.steps)) for pid in contents.pids if contents.steps}
    return found, broken


def one(sandbox: Sandbox, cell: Cell, side, base: Path) -> dict:
    """Bring one job to its end; again, at most twice, when nsys did not even start its worker."""
    for attempt in range(3):
        sandbox.heal()
        job = side(sandbox, cell, base.with_name(f"{base.name}-{attempt}"))
        try:
            job.wait_step()
        except AgentLost:
            continue
        injected = time.time()
        try:
            cell.inject(job)
        except SandboxError as error:  # a process that the fault is meant for is not there
            print(f"{base.name}: {error}", file=sys.stderr)
            job.go()
        said = how_it_ended(sandbox, job)
        seconds = round(time.time() - injected)
        if cell.stays and not job.stand_in:
            bring_home(job)
        if not job.agent_lost():
            break
    windows, broken = home(job)
    ended = {2, 9} if cell.second == ("ok",) else {2}
    return {
        "state": said,
        "home": len([1 for _, step in windows if step in ended]),
        "of": 2 * len(ended),
        "broken": broken,
        "seconds": seconds,
    }


def how_it_ended(sandbox: Sandbox, job: Job) -> str:
    """Slurm's word; a job that does not notice its fault is cancelled after some minutes, as a person
    would.
    """
    try:
        state = sandbox.wait(job.id, timeout=180)
    except SandboxError:
        sandbox.run(["scancel", str(job.id)], check=False)
        sandbox.wait(job.id, timeout=120)
        return "hung"
    return f"{state.state} {state.exit_code}"


def lane(side, base: str, cells: list[Cell], rows: dict[str, dict]) -> None:
    """All paths of one side, in a sandbox of its own."""
    with Sandbox.up(nodes=3, kill_wait=30) as sandbox:
        for cell in cells:
            print(f"{base}: {cell.name}", file=sys.stderr, flush=True)
            rows[cell.name] = one(
                sandbox,
                cell,
                side,
                sandbox.shared / f"{cell.name.replace(' ', '-').replace(chr(39), '')}-{base}",
            )
            print(f"{cell.name}, {base}:", *shown(rows[cell.name]), file=sys.stderr, flush=True)


def shown(row: dict) -> tuple[object, ...]:
    return f"{row['home']} of {row['of']}", row["broken"], row["state"], row["seconds"]
