"""A real job that hangs: two gloo ranks in Ray actors, of which one stays away from a collective.

The recorder finds the step clock still, or a person asks; the ranks dump PyTorch's flight recorder from
inside while one of them waits in the collective, the dumps come home, and the commands name the rank.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("ray")

from rlprof_ops.cli import cli
from rlprof_ops.demo.local_job import run_local
from rlprof_ops.recorder.head_recorder import read_rows

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.whole, pytest.mark.timeout(600)]

# A world that hangs in step 4, and one of the same size that does not.
PROGRAM = """
import os, signal, subprocess, sys, time
from datetime import timedelta
from pathlib import Path
import ray
from rlprof_ops.runtime import profiler

folder, asks = sys.argv[1:]

@ray.remote(num_cpus=0)
class Rank:
    def __init__(self, store, rank):
        import torch.distributed as dist
        limit = timedelta(seconds={"nobody": 60, "end": 160}.get(asks, 600))
        meeting = f"file://{store}"
        dist.init_process_group("gloo", init_method=meeting, timeout=limit, rank=rank, world_size=2)
        self.rank = rank

    def is_there(self):
        pass

    def train(self, stays_away=False):
        import torch
        import torch.distributed as dist
        if stays_away and self.rank == 1:
            print("reading shard 7", flush=True)
            if asks in ("nobody", "end"):
                while not Path(os.environ["RLPROF_NODE_DIR"], f"marks/{os.getpid()}.groups").exists():
                    time.sleep(0.1)
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(600)
        dist.all_reduce(torch.ones(4, 5))

ray.init()
trainer, rollout = ([Rank.remote(f"{folder}/{name}", rank) for rank in range(2)] for name in "tr")
ray.get([rank.is_there.remote() for rank in (*trainer, *rollout)])  # what starts slowly is no hang of step 1
prof = profiler.from_env(worker="controller", rank=0)
for step in (1, 2, 3):
    with prof.step(step):
        ray.get([rank.train.remote() for rank in (*trainer, *rollout)])
with prof.step(4):
    waiting = [rank.train.remote(stays_away=True) for rank in trainer]
    if asks == "person":
        command = [sys.executable, "-m", "rlprof_ops", "hang", os.environ["RLPROF_RUN_DIR"], "--dump"]
        subprocess.run(command, check=True)
    if asks == "end":
        time.sleep(600)
    dumps, until = Path(os.environ["RLPROF_NODE_DIR"], "torch_fr"), time.time() + 240
    while len([*dumps.glob("*/gloo_fr_*.pickle")]) < (3 if asks == "nobody" else 4) and time.time() < until:
        time.sleep(0.5)
sys.exit(7)
"""


def hung_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: str, request: dict[str, object], code: int = 7
) -> tuple[Path, list[str]]:
    """The run folder of a job that hung and ended with `code`, and what it said."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "profile.yaml").write_text(json.dumps(request))
    settings = {
        "COMMAND": shlex.join([sys.executable, "-u", str(tmp_path / "train.py"), str(tmp_path), asks]),
        "RLPROF_REQUEST": str(tmp_path / "profile.yaml"),
        "RLPROF_REPORT_SECONDS": "0",
        "GPUS_PER_NODE": "0",
        "OMP_NUM_THREADS": "1",
    }
    said: list[str] = []
    result = run_local(tmp_path, settings, said.append)
    run = result.run.path
    assert result.exit_code == code, said
    return run, said


def test_a_rank_that_is_stopped_is_found_by_half_of_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks, and no time for a hang is set: the group's own timeout of 60 s counts."""
    run, _ = hung_run(tmp_path, monkeypatch, "nobody", {"captures": []})
    [finding] = read_rows(run / "recorder/findings.jsonl", ("kind", "text"))
    assert finding["kind"] == "hang" and finding["evidence"]["still_s"] >= 15
    waits = "in all_reduce #4 of default_pg"
    stopped = r"rank 1 \((\w+, )?Rank\.train, node \S+, pid \d+\) is stopped \(SIGSTOP\): rank 0 "
    assert re.fullmatch(rf"{stopped}has waited [\d.]+ s {waits}", finding["text"])
    answer, *more = CliRunner().invoke(cli, ["hang", str(run)]).output.splitlines()
    assert re.fullmatch(rf"R{stopped[1:]}waits {waits} \(Float \[4, 5\]\)\.", answer), answer
    assert_last_line_is_told(more)
    status = CliRunner().invoke(cli, ["status", str(run)]).output
    assert answer in status and "the stacks of all workers" in status, status


def assert_last_line_is_told(answer: list[str]) -> None:
    """Of the rank that is missing, and lives: the end of its own log."""
    assert "    reading shard 7" in answer, answer
    log = answer[answer.index("    reading shard 7") - 1]
    assert re.fullmatch(r"  rank 1, the last lines of /\S+/ray/\S+/logs/worker-\S+\.out:", log), answer


@pytest.mark.long
def test_a_job_that_hangs_can_end_with_all_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RLPROF_ON_HANG=end: the window that hangs too is in the manifest, with the hang as the reason."""
    monkeypatch.setenv("RLPROF_ON_HANG", "end")
    request = {"captures": [{"backend": "torch", "workers": ["controller"], "steps": "2, 4:5"}]}
    run, _ = hung_run(tmp_path, monkeypatch, "end", request, code=75)
    end = json.loads((run / "run.json").read_text())["end"]
    assert end["cause"] == "hang" and "is stopped (SIGSTOP): rank 0 has waited" in end["detail"], end
    assert len([*run.glob("nodes/*/torch_fr/*/gloo_fr_*.pickle")]) == 3
    first, second = json.loads((run / "manifest.json").read_text())["captures"]
    assert first["state"] == "ok"
    assert second["state"] != "ok" and "the job hung (rank 1" in second["reason"], second
    status = CliRunner().invoke(cli, ["status", str(run)]).output
    assert re.search(r"exit code +75\n", status) and "Rank 1" in status, status


@pytest.mark.parametrize("asks", ["recorder", pytest.param("person", marks=pytest.mark.long)])
def test_the_rank_that_a_job_waits_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    limit = "5s" if asks == "recorder" else "600s"
    request = {"captures": [{"backend": "torch", "workers": ["none"], "when": {"hang": limit, "at_most": 1}}]}
    run, said = hung_run(tmp_path, monkeypatch, asks, request)
    assert len([*run.glob("nodes/*/torch_fr/*/gloo_fr_*_rank_[01].pickle")]) == 4, said

    answer = CliRunner().invoke(cli, ["hang", str(run)])
    verdict = "Rank 1 is missing: rank 0 waits in all_reduce #4 of default_pg (Float [4, 5])."
    assert answer.exit_code == 0 and answer.output.splitlines()[0] == verdict, answer.output
    assert f"train {tmp_path}/train.py" in answer.output
    assert_last_line_is_told(answer.output.splitlines())
    found = json.loads(CliRunner().invoke(cli, ["hang", str(run), "--json"]).output)
    assert [each["kind"] for each in found["verdicts"]] == ["missing", "nothing"]

    status = CliRunner().invoke(cli, ["status", str(run)]).output
    assert verdict in status, status
