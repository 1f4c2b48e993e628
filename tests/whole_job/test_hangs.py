"""Real gloo ranks under Ray on two nodes that hang, a cause at a time: the job's output names the missing
rank, its node and what it does. The rows of the table in docs/hang.md are printed (`pytest -s`).
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.needs import lacking
from tests.sandbox import Sandbox
from tests.whole_job.jobs import Job

pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(1500)]
PROGRAM = Path(__file__).with_name("hung_actors.py")
AT = r"at \S+/hung_ranks\.py:\d+"
# Cause -> what the missing rank does, by rank; ranks 0 and 1 are on n1, 2 and 3 on n2.
MISSING = {
    "sleeps": (1, f"is in `time.sleep` {AT}"),
    "leaves_early": (2, f"is (in `[^`]+` )?{AT}"),
    "other_shape": (2, f"is in `time.sleep` {AT}"),
    "stopped": (3, r"is stopped \(SIGSTOP\)"),
    "lock": (1, f"is {AT}"),
    "file_lock": (1, rf"is in `fcntl\.flock` {AT}"),
    "dead_mount": (1, f"waits for an answer of a FUSE file system in `open` {AT}"),
}
OTHERS = {
    "other_collective": "ranks wait for each other: ranks 0, 2, 3 in all_reduce #4 of default_pg; rank 1 in"
    " barrier #4 of default_pg",
    "opposite_order": "ranks wait for each other: rank 0 in all_reduce #1 of tp; rank 3 in all_reduce #1"
    " of dp",
    "never_placed": r"the driver waits: an actor or task asks for 1000 CPU, and no node has that .*",
}
TIMEOUT_S = 60


def sentence(cause: str) -> str:
    if cause in OTHERS:
        return OTHERS[cause]
    rank, does = MISSING[cause]
    others = {1: "0, 2, 3", 2: "0, 1, 3", 3: "0-2"}[rank]
    operation = "broadcast" if cause == "other_shape" else "all_reduce"
    who = rf"rank {rank} \((\w+, )?Rank\.run, node n{rank // 2 + 1}, pid \d+\) {does}"
    return rf"{who}: ranks {others} have waited [\d.]+ s in {operation} #4 of default_pg"


@pytest.mark.long
def test_each_cause_is_said_with_its_rank_and_node(slurm: Sandbox) -> None:
    causes = [*MISSING, *OTHERS]
    if lacking("fuse"):
        causes.remove("dead_mount")
    command = shlex.join(["python", "-u", str(PROGRAM), *causes])
    job = Job.submit(slurm, nodes=2, COMMAND=command, OMP_NUM_THREADS="1", RLPROF_REPORT_SECONDS="0")
    job.wait(1300)
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in (job.run / "logs/driver.log").read_text().splitlines():
        if line.startswith("cause: "):
            cause, found = json.loads(line.partition(" ")[2])
            rows[cause] = found
    for cause, found in rows.items():
        still_s = found[0].get("evidence", {}).get("still_s", -1)
        print(f"| {cause} | {found[0]['text']} | {still_s:.0f} s |")
    assert [*rows] == causes, job.say()
    for cause, found in rows.items():
        assert len(found) == 1, (cause, found)
        assert re.fullmatch(sentence(cause), found[0]["text"]), (cause, found[0]["text"])
        assert found[0]["evidence"]["still_s"] < TIMEOUT_S / 2, found
        assert found[0]["text"] in job.output, cause
    assert re.search(r"found: of Ray's tasks, .*Rank\.run has run for [\d.]+ s \(4 tasks\)", job.output)
