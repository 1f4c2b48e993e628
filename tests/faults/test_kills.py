"""SIGKILL for our helpers at twenty random moments of one job: training does not notice, nothing that had ended is lost."""

from __future__ import annotations

import os
import random
import time

import pytest

from rlprof_ops.collect.beneath import Beneath
from rlprof_ops.collect.observed import observe
from tests.faults.job import submit
from tests.needs import need
from tests.sandbox import Sandbox

pytestmark = [
    pytest.mark.slurm, pytest.mark.nsys, pytest.mark.ray, pytest.mark.torch,
    pytest.mark.skipif(os.environ.get("RLPROF_FAULTS") != "all", reason="part of make test-faults"),
]
KILLS = 20
HELPERS = ("rlprof_ops.collect.sync", "start-agent", "nsys stop", "nsys start", "nsys sessions", "QdstrmImporter")


@pytest.mark.timeout(1500)
def test_killing_helpers_at_random_moments_costs_training_nothing():
    need("slurm")
    rng = random.Random(7)
    with Sandbox.up(nodes=3, kill_wait=30) as sandbox:
        job = submit(sandbox, sandbox.shared / "kills", trainer=("--steps", "40", "--seconds", "0.5"))
        job.go()
        job.wait_step(1)
        killed = []
        while len(killed) < KILLS and sandbox.job(job.id).state == "RUNNING":
            time.sleep(rng.uniform(0.2, 1.2))
            found = [(node, process) for node in ("n1", "n2") for process in sandbox.processes(node) if any(words in process.cmdline for words in HELPERS)]
            if found:
                node, process = rng.choice(found)
                sandbox.exec(node, ["kill", "-9", str(process.pid)], check=False)
                killed.append(process.cmdline[:60])
        state = sandbox.wait(job.id, timeout=400)
        assert (state.state, state.exit_code) == ("COMPLETED", 0), job.output()
        assert f"result {sum(range(41))}" in (job.folder / "logs/driver.log").read_text()
        manifest = job.harvest()
        shown = "\n".join([*killed, *(f"{capture.id} {capture.state} {capture.reason}" for capture in manifest.captures)])
        with Beneath(job.folder) as run:
            ended = {(event.backend, log.rank, event.start) for log in observe(run).logs for event in log.windows if event.event == "closed"}
        states = {(capture.backend, capture.rank, capture.start): capture.state for capture in manifest.captures}
        assert all(states[key] in ("ok", "recovered") for key in ended), shown
        assert all(capture.reason for capture in manifest.captures if capture.state != "ok"), shown
        if any("collect.sync" in words for words in killed):
            assert "sync ended with -9 while the job runs" in job.output(), shown
