"""Real failures of real disks: a limit that stops every larger write, folders that vanish, a file system that is full."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

TRAINING = """
import os, resource, shutil, sys
how, node_dir = sys.argv[1:]
import torch
from rlprof_ops.runtime import profiler
prof = profiler.from_env(worker="policy_worker", rank=0)
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
losses = []
for step in range(1, 7):
    with prof.step(step), prof.range("train"):
        if step == 3 and how == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        if step == 3 and how == "deleted":
            shutil.rmtree(node_dir)
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
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RLPROF_NODE_DIR": str(node_dir), "RLPROF_NODE": "n1", **asked}
    done = subprocess.run([sys.executable, "-c", TRAINING, how, str(node_dir)], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "failed, training goes on" in line]
    return done.stdout, said


def asked(steps):
    return {"RLPROF_REQUEST_JSON": json.dumps({"captures": [{"backend": "torch", "workers": ["*"], "steps": steps}]})}


@contextlib.contextmanager
def small_disk(folder):
    """A file system of 256 KiB."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a file system: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the training gives when nothing is asked."""
    return train(tmp_path_factory.mktemp("undisturbed"), "nothing")[0]


@pytest.mark.parametrize(("how", "reason"), [("limit", "File too large"), ("deleted", ""), ("full", "No space left")])
def test_training_goes_on_with_the_same_results(tmp_path, undisturbed, how, reason):
    node_dir = tmp_path / "node"

    with small_disk(node_dir) if how == "full" else contextlib.nullcontext():
        losses, said = train(node_dir, how, **asked("3,5"))
        rows = [json.loads(line) for path in Path(node_dir).glob("events/*.jsonl") for line in path.read_text().splitlines() if line.startswith("{") and line.endswith("}")]

    assert losses == undisturbed
    assert len(said) == (0 if how == "deleted" else 1), said
    failed = [row["reason"] for row in rows if row["event"] == "failed"]
    if how == "limit":
        assert len(failed) == 2 and all(reason in text or "export" in text for text in failed), failed
    if how == "deleted":  # folders are made again
        assert [row["steps"] for row in rows if row["event"] == "closed"] == [[3, 4], [5, 6]]
