"""Stop one process of a trainer that nobody changed, and wait until the job's recorder says so:
stop_one.py WHOM STEP COMMAND…

WHOM is `rank 1`, of the process group in which that rank is, or `engine`, the core of a vLLM server. It gets
SIGSTOP once the job is in step STEP. Printed is what was found after that, and after how many seconds; then
the command is ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rlprof_ops.host import foreign, processes

RUN, NODE = Path(os.environ["RLPROF_RUN_DIR"]), Path(os.environ["RLPROF_NODE_DIR"])
FIRST_WORDS = "stopped: "
START_S, FOUND_S, MORE_S, POLL_S = 700.0, 200.0, 20.0, 0.2


def found() -> list[dict[str, object]]:
    path = RUN / "recorder/findings.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for row in rows if row["kind"] in ("hang", "long_wait")]


def step() -> object:
    return foreign.read_object(RUN / "recorder/summary.json").get("step", 0)


def victims(whom: str) -> list[int]:
    """Those of the job that WHOM means, of which the first one is taken."""
    if whom == "engine":
        mine = processes.of_job(os.environ["RLPROF_JOB"], NODE)
        return [each.pid for each in mine if each.name.startswith("VLLM::EngineCor")]
    rank = int(whom.removeprefix("rank "))
    states = {int(path.stem): json.loads(path.read_text()) for path in (NODE / "marks").glob("*.groups")}
    return [pid for pid, state in states.items() if state["rank"] == rank]


def main(whom: str, at: str, *command: str) -> None:
    trainer = subprocess.Popen(command, start_new_session=True)
    stopped = 0
    try:
        until = time.monotonic() + START_S
        while int(str(step())) < int(at) or not victims(whom):
            assert trainer.poll() is None and time.monotonic() < until, (step(), victims(whom))
            time.sleep(POLL_S)
        before = len(found())
        stopped = victims(whom)[0]
        print(f"{whom} is pid {stopped} of {victims(whom)}, in step {step()}", flush=True)
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        while len(found()) == before and time.monotonic() < began + FOUND_S:
            time.sleep(POLL_S)
        seconds = time.monotonic() - began
        time.sleep(MORE_S)  # it is said once, and the dumps come home
        told = {"pid": stopped, "seconds": seconds, "before": before, "found": found()[before:]}
        print(FIRST_WORDS + json.dumps(told), flush=True)
    finally:
        if stopped:
            os.kill(stopped, signal.SIGKILL)
        os.killpg(trainer.pid, signal.SIGKILL)
        trainer.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
