"""What the batch script does with an order to end: one that comes while it makes the manifest of an earlier
attempt, and one that it hands on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.waits import wait_until

from rlprof_ops.collect.harvest.manifest import Manifest

HOME = Path(__file__).parents[2]
SCRIPT = """
set -euo pipefail
for name in common knobs slurm harvest_job job; do source "$RLPROF_HOME/scripts/lib/$name.sh"; done
knobs::load "$RLPROF_HOME"
job::run_folder
export RLPROF_NODES=n1 RLPROF_HARVEST_JOB=0
slurm::srun_line "$RLPROF_HOME" "$RLPROF_RUN_DIR"
SRUN=(touch "$BASE_LOG_DIR/started")
TASK_LINE=("$BASE_LOG_DIR/task")
job::earlier_attempts
job::run
"""
TASK = """#!/bin/bash
[[ $* != *"harvest "*/7-logs ]] || { echo $$ > "$BASE_LOG_DIR/harvest"; exec sleep 600; }
exec bash "$RLPROF_HOME/scripts/node.sh" "$@"
"""


@pytest.mark.parametrize(
    ("signal", "code", "cause"), [("TERM", 143, "signal"), ("USR2", 140, "time_limit")], ids=["stop", "limit"]
)
def test_no_node_is_started_and_the_end_is_recorded(
    tmp_path: Path, signal: str, code: int, cause: str
) -> None:
    (tmp_path / "7-logs").mkdir(mode=0o700)
    (tmp_path / "7-logs/run.json").write_text("{}")
    (tmp_path / "task").write_text(TASK)
    (tmp_path / "task").chmod(0o755)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "BASE_LOG_DIR": str(tmp_path),
        "RLPROF_HOME": str(HOME),
        "RLPROF_NODE_ROOT": str(tmp_path),
        "RLPROF_PYTHON": sys.executable,
        "RLPROF_REPORT_SECONDS": "0",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }
    with open(tmp_path / "said", "wb") as said:
        job = subprocess.Popen(["bash", "-c", SCRIPT], env=env, stdout=said, stderr=said)
    output = (tmp_path / "said").read_text
    harvest = tmp_path / "harvest"
    wait_until(lambda: harvest.exists() and harvest.read_text(), 90, output)
    subprocess.run(["kill", "-s", signal, str(job.pid)], check=True)
    assert job.wait(120) == code, output()
    assert not Path(f"/proc/{int(harvest.read_text())}").exists()
    assert not (tmp_path / "started").exists()
    run = tmp_path / "7.r1-logs"
    end = json.loads((run / "run.json").read_text())["end"]
    assert (end["cause"], end["detail"]) == (cause, f"told to end ({cause}) before a node was started")
    assert (run / "manifest.json").exists(), output()


@pytest.mark.parametrize("made_anew", [True, False])
def test_a_manifest_from_while_an_earlier_attempt_ran_is_made_anew_or_not_trusted(
    tmp_path: Path, made_anew: bool
) -> None:
    folder = tmp_path / "7-logs"
    folder.mkdir()
    manifest = folder / "manifest.json"
    manifest.write_text("".join(Manifest("7", (), (), running=True).lines()))
    script = """
        set -euo pipefail
        for name in common slurm job; do source "$RLPROF_HOME/scripts/lib/$name.sh"; done
        job::_harvest() { [[ -z $NEW ]] || cp -- "$NEW" "$2/manifest.json"; }
        EARLIER_FOLDERS[0]="$FOLDER"
        mkdir -p "$RUN_FOLDER/logs"
        job::earlier_attempts
        printf '%s' "$RLPROF_EARLIER_ATTEMPTS"
    """
    new = tmp_path / "new.json"
    new.write_text("".join(Manifest("7", (), ()).lines()))
    env = {
        "PATH": os.environ["PATH"],
        "RLPROF_HOME": str(HOME),
        "FOLDER": str(folder),
        "RLPROF_RUN_DIR": str(tmp_path / "7.r1-logs"),  # and RUN_FOLDER
        "NEW": str(new) if made_anew else "",
    }
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=120, check=True)
    assert done.stdout == (b"0" if made_anew else b""), done.stderr


HANDED_ON = """
set -euo pipefail
for name in common knobs slurm harvest_job job; do source "$RLPROF_HOME/scripts/lib/$name.sh"; done
RLPROF_NODES=n1 RLPROF_RUN_DIR="$FOLDER" RUN_FOLDER="$FOLDER" RLPROF_HARVEST_JOB=0
task='trap "exit 5" TERM USR2; echo $BASHPID > "$FOLDER/keeper"; for _ in {1..1200}; do sleep 0.1; done'
SRUN=(bash -c "$task")
[[ $TOLD == keeper ]] && job::_keeper() { cat "$FOLDER/keeper"; } || job::_keeper() { :; }
slurm::step() { [[ $TOLD == step ]] && printf 7.1 || true; }
scancel() { kill -s "${1#--signal=}" "$(cat "$FOLDER/keeper")"; }
job::salvage() { common::log "salvage after $1"; }
job::run
"""


@pytest.mark.parametrize("signal", ["TERM", "USR2"])
@pytest.mark.parametrize("told", ["keeper", "step"])
def test_the_batch_script_outlives_an_order_that_it_has_handed_on(
    tmp_path: Path, told: str, signal: str
) -> None:
    """It brings home what is left on nodes. In a trap, `return` alone gives the status of `wait`."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "run.json").write_text("{}")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "FOLDER": str(tmp_path), "TOLD": told}
    env |= {"RLPROF_HOME": str(HOME), "SLURM_JOB_ID": "7"}
    with open(tmp_path / "said", "wb") as said:
        job = subprocess.Popen(["bash", "-c", HANDED_ON], env=env, stdout=said, stderr=said)
    keeper, output = tmp_path / "keeper", (tmp_path / "said").read_text
    wait_until(lambda: keeper.exists() and keeper.read_text(), 90, output)
    time.sleep(0.3)
    subprocess.run(["kill", "-s", signal, str(job.pid)], check=True)
    assert job.wait(100) == 5, output()
    assert "salvage after 5" in output() and "ended with exit code 5" in output()
