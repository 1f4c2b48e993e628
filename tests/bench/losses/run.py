"""How many finished windows are lost at a job's end: ray.sub against NeMo RL's way (rsync loop, no last pass, no drain).

Rerun, as root with Slurm and nsys: python tests/bench/losses/run.py [--paths ok,driver-exits,...]
Both sides run the same trainer on the same sandbox with the same faults; the second one has Ray's own nsight plugin and
capture ranges, and syncs every two seconds, as ours (its own default is not at all, its documents say 30).
A window counts when it had ended before the fault and its report is in the job's folder and nsys can read it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "python"), str(ROOT)]

from tests.faults.cells import CELLS, Cell  # noqa: E402
from tests.faults.job import Job, submit  # noqa: E402
from tests.sandbox import Sandbox, SandboxError  # noqa: E402

from rlprof_ops.collect.contents import ExportFailed, look  # noqa: E402

PATHS = ("ok", "driver-exits", "driver-killed", "worker-dies", "scancel", "time-limit", "node-lost")


def ours(sandbox: Sandbox, cell: Cell, base: Path) -> Job:
    return submit(sandbox, base, cell.fault, cell.args)


def theirs(sandbox: Sandbox, cell: Cell, base: Path) -> Job:
    base.mkdir(parents=True)
    command = shlex.join(["python", str(ROOT / "tests/faults/trainer.py"), "--style", "ray-nsight", "--progress", str(base / "progress"), "--fault", cell.fault])
    env = {"COMMAND": command, "VENV": sys.prefix, "BASE_LOG_DIR": str(base), "FREQUENCY": "2", "PYTHONPATH": str(ROOT / "python")}
    job = sandbox.sbatch(["-N2", "--gres=gpu:2", "--no-requeue", *cell.args, ROOT / "tests/bench/losses/rsync_loop.sub"], env=env, cwd=base)
    return Job(sandbox, job, base, time.time())


def home(job: Job) -> tuple[set[tuple[int, int]], int]:
    """(process, first step) of every window that a readable report holds, and the number of files that are no report."""
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
    sandbox.heal()
    job = side(sandbox, cell, base)
    if not cell.fault:
        job.wait_step()
    injected = time.time()
    try:
        cell.inject(job)
    except SandboxError as error:
        print(f"  {error}")
    state = sandbox.wait(job.id, timeout=240)
    windows, broken = home(job)
    ended = {2} if cell.name != "ok" else {2, 9}
    return {"state": f"{state.state} {state.exit_code}", "home": len([1 for _, step in windows if step in ended]), "of": 2 * len(ended), "broken": broken,
            "seconds": round(time.time() - injected)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", default=",".join(PATHS))
    arguments = parser.parse_args()
    cells = {cell.name.replace(" ", "-"): cell for cell in CELLS}
    total = {"ours": [0, 0], "rsync loop": [0, 0]}
    print(f"{'path':<16}{'side':<12}{'windows home':>13}{'unreadable':>12}{'Slurm':>16}{'end s':>7}")
    with Sandbox.up(nodes=3, kill_wait=30) as sandbox:
        for path in arguments.paths.split(","):
            for name, side in (("ours", ours), ("rsync loop", theirs)):
                row = one(sandbox, cells[path], side, sandbox.shared / f"{path}-{name.replace(' ', '-')}")
                total[name][0] += row["home"]
                total[name][1] += row["of"]
                print(f"{path:<16}{name:<12}{row['home']:>8} of {row['of']}{row['broken']:>12}{row['state']:>16}{row['seconds']:>7}", flush=True)
    for name, (found, of) in total.items():
        print(f"{name}: {of - found} of {of} finished windows lost")
    print(json.dumps(total))


if __name__ == "__main__":
    main()
