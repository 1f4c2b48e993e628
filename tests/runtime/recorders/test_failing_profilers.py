"""A profiler that fails, up to the manifest: training gives the same results, says one line, and `rlprof
harvest` knows the reason.

Failures are real where they can be (a full disk, a limit, a folder that is gone, no nsys) and stand-ins
elsewhere (a `torch.profiler` or an `nsys` that fails at one moment). The files go the way of a job: node
folder, sync, run folder, harvest.
"""

import contextlib
import os
import subprocess
import sys

import pytest
from tests.collect.runfolder import RunFolder
from tests.nsys_stand_in import answering_nsys
from tests.small_disk import small_disk

from rlprof_ops.collect.harvest.run_harvest import harvest
from rlprof_ops.collect.sync.sync_pass import Syncer
from rlprof_ops.request import request_from_dict

pytestmark = [pytest.mark.torch, pytest.mark.whole]

TRAINING = """
import os, resource, shutil, sys
how, node_dir = sys.argv[1:]
import torch
from rlprof_ops.runtime import profiler

def fail(*_, **__):
    raise RuntimeError(how + " failed")

stand_in = {"torch start": "start", "torch stop": "stop", "torch export": "export_chrome_trace"}.get(how)
if stand_in:
    setattr(torch.profiler.profile, stand_in, fail)
if how == "ranges":
    torch.profiler.record_function.__enter__ = fail
prof = profiler.from_env(worker="policy_worker", rank=0)
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
losses = []
for step in range(1, 7):
    with prof.step(step), prof.range("train"):
        if step == 3 and how == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        if step == 3 and how in ("deleted", "gone for good"):
            shutil.rmtree(node_dir)
            if how == "gone for good":
                open(node_dir, "w").close()
        if step == 3 and how == "full":
            ballast = os.open(node_dir + "/ballast", os.O_WRONLY | os.O_CREAT)
            try:
                while True:
                    os.write(ballast, bytes(1 << 12))
            except OSError:
                pass
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        losses.append(loss.item())
prof.close()
print(losses)
"""


def train(node_dir, how, **asked):
    """Run the training; what it printed, and what rlprof said."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RLPROF_NODE_DIR": str(node_dir),
        "RLPROF_NODE": "n1",
        **asked,
    }
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, how, str(node_dir)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if line.startswith("[rlprof]")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the training gives when nothing is asked."""
    return train(tmp_path_factory.mktemp("undisturbed"), "nothing")[0]


# How it fails: the backend, the reason in the manifest and in the log.
FAILURES = {
    "torch start": ("torch", "torch.profiler did not start: torch start failed"),
    "torch stop": ("torch", "torch stop failed"),
    "torch export": ("torch", "torch.profiler could not export: torch export failed"),
    "limit": ("torch", "File too large"),
    "full": ("torch", "No space left on device"),
    "short": ("torch", "stay free for the program (RLPROF_SYNC_KEEP_FREE_MIB)"),
    "nsys start": ("nsight", "`nsys start` failed with exit code 1: Unable to start: no more sessions"),
    "nsys stop": (
        "nsight",
        "`nsys stop` failed with exit code 1: Stop failed: Local Endpoint is not available",
    ),
    "nsys silent": ("nsight", "`nsys stop` ended but wrote no report"),
    "nsys missing": ("nsight", "no nsys at 'nsys'"),
}


@pytest.mark.parametrize("how", FAILURES)
def test_training_goes_on_and_the_manifest_has_the_reason(tmp_path, undisturbed, how):
    backend, reason = FAILURES[how]
    node_dir = tmp_path / "node"
    request = {"captures": [{"backend": backend, "workers": ["policy_worker"], "steps": "3,5"}]}
    asked = {"RLPROF_REQUEST_JSON": request_from_dict(request).to_json()}
    if backend == "nsight":
        asked |= {
            "RLPROF_NSYS_SESSION": "rlprof-test",
            "RLPROF_NSYS": str(faulty_nsys(tmp_path, how)),
            "PATH": str(tmp_path),
        }

    if how in ("full", "short"):
        asked["RLPROF_SYNC_KEEP_FREE_MIB"] = "0" if how == "full" else "1"

    with small_disk(node_dir, "256k") if how in ("full", "short") else contextlib.nullcontext():
        losses, said = train(node_dir, how, **asked)
        manifest = harvested(node_dir, tmp_path / "4711-logs", request)

    assert losses == undisturbed
    assert len(said) == 1 and reason in said[0] and "training goes on" in said[0], said
    of_worker = f"{backend}/policy_worker/rank0"
    assert [(capture.id, capture.state) for capture in manifest.captures] == [
        (f"{of_worker}/step{step}-{step}", "missing") for step in (3, 5)
    ]
    assert all(reason in capture.reason for capture in manifest.captures), [
        capture.reason for capture in manifest.captures
    ]


# What nsys answers instead.
FAULTS = {
    "nsys start": {"start": 'echo "Unable to start: no more sessions" >&2; exit 1'},
    "nsys stop": {"stop": 'echo "Stop failed: Local Endpoint is not available" >&2; exit 1'},
    "nsys silent": {"stop": "exit 0"},
}


def faulty_nsys(folder, how):
    if how == "nsys missing":
        return folder / "nsys"
    return answering_nsys(folder, **{"sessions": "exit 0", "start": "exit 0"} | FAULTS[how])


def harvested(node_dir, run_dir, request):
    """The manifest after a last sync of the node."""
    run = RunFolder(run_dir, request, nodes=("n1",))
    Syncer(node_dir, run_dir, "n1").pass_(last=True)
    return harvest(run.write())


def test_ranges_that_fail_cost_one_line_and_no_report(tmp_path, undisturbed):
    request = {"captures": [{"backend": "torch", "workers": ["policy_worker"], "steps": "3,5"}]}

    losses, said = train(
        tmp_path / "node", "ranges", RLPROF_REQUEST_JSON=request_from_dict(request).to_json()
    )

    assert losses == undisturbed
    assert len(said) == 1 and "range did not start: ranges failed" in said[0], said
    assert [
        capture.state for capture in harvested(tmp_path / "node", tmp_path / "4711-logs", request).captures
    ] == ["ok", "ok"]


def test_a_node_folder_that_somebody_deletes_is_made_again(tmp_path, undisturbed):
    request = {"captures": [{"backend": "torch", "workers": ["policy_worker"], "steps": "3,5"}]}

    losses, said = train(
        tmp_path / "node", "deleted", RLPROF_REQUEST_JSON=request_from_dict(request).to_json()
    )

    assert losses == undisturbed and said == []
    assert [
        capture.state for capture in harvested(tmp_path / "node", tmp_path / "4711-logs", request).captures
    ] == ["ok", "ok"]


def test_a_node_folder_that_cannot_be_made_again(tmp_path, undisturbed):
    """Nothing can be told from there: the manifest has what the run folder had before, and that no report
    came.
    """
    request = {"captures": [{"backend": "torch", "workers": ["policy_worker"], "steps": "3,5"}]}

    losses, said = train(
        tmp_path / "node", "gone for good", RLPROF_REQUEST_JSON=request_from_dict(request).to_json()
    )

    assert losses == undisturbed
    assert len(said) == 2 and "events" in said[0] and "Not a directory" in said[1], said
    run = RunFolder(tmp_path / "4711-logs", request, nodes=("n1",))
    run.worker("policy_worker", 0, windows=[("opened", "torch", 3, 4, None)], last_step=3, ended=False)
    first, second = harvest(run.write()).captures
    assert first.state == second.state == "missing" and first.reason and second.reason
