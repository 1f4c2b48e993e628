"""One bad file costs itself: nesting without end, a gzip bomb, a FIFO, a file too large. Real commands read
them in a process with little memory.
"""

import gzip
import json
import os
import resource
import subprocess
import sys

import pytest
from tests.collect.runfolder import RunFolder

from rlprof_ops.host import foreign

DEEP = b"[" * 2_000_000
REQUEST = {
    "captures": [
        {"backend": backend, "workers": ["policy_worker"], "steps": "3"} for backend in ("memory", "torch")
    ]
}


@pytest.fixture
def job(tmp_path):
    """A job whose rank 0 has whole reports; what rank 1 has is each test's."""
    job = RunFolder(tmp_path / "4711-logs", REQUEST)
    for rank in (0, 1):
        job.worker("policy_worker", rank, "n1", windows=[("closed", "torch", 3, 4, None)])
    job.report("torch", "policy_worker", 0, 3, 4, node="n1")
    job.write()
    return job


def put(job, backend, suffix, data):
    folder = job.root / f"profiles/{backend}/policy_worker/rank1"
    folder.mkdir(parents=True)
    path = folder / f"policy_worker_rank1_step3-3_n1_101{suffix}"
    path.write_bytes(data)
    return path


def rlprof(*words, memory=2 << 30):
    """A command of ours with so much memory; its exit code and all it said."""

    def little():
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    argv = [sys.executable, "-m", "rlprof_ops", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        argv, env=env, preexec_fn=little, capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def bomb(size):
    """A gzip of so many zeros, made block by block."""
    block = gzip.compress(bytes(64 << 20), 9)
    return block * (size // (64 << 20))


def states(job):
    manifest = json.loads((job.root / "manifest.json").read_text())
    return {(c["backend"], c["rank"]): (c["state"], c["reason"]) for c in manifest["captures"]}


@pytest.mark.parametrize("kind", ["deep", "bomb"])
def test_a_bad_memory_report_is_that_reports_fault(job, kind):
    data = gzip.compress(DEEP) if kind == "deep" else bomb(4 << 30)
    put(job, "memory", ".host-memory.json.gz", data)
    code, said = rlprof("harvest", job.root)
    assert code == 3, said
    found = states(job)
    assert found["torch", 0][0] == "ok"
    state, reason = found["memory", 1]
    assert state == "truncated" and ("nested too deeply" in reason or "inflates to more" in reason)


def test_a_trace_that_is_a_bomb_is_not_inflated_to_its_end(job):
    put(job, "torch", ".pt.trace.json.gz", bomb(8 << 30))
    code, said = rlprof("harvest", job.root)
    assert code == 3, said
    assert "400 times its size" in states(job)["torch", 1][1]


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        *(("deep", name) for name in ("run.json", "manifest.json", "state.json", "nodes/n1.json")),
        ("fifo", "run.json"),
        ("fifo", "state.json"),
    ],
)
def test_records_that_cannot_be_read_end_no_command(job, file, kind):
    rlprof("harvest", job.root)
    path = job.root / file
    path.unlink(missing_ok=True)
    if kind == "deep":
        path.write_bytes(DEEP)
    else:
        os.mkfifo(path)
    for words in (["status", job.root], ["harvest", job.root]):
        code, said = rlprof(*words)
        assert code in (0, 1, 2, 3) and said


def test_events_nested_without_end_are_left_out(job):
    (path,) = job.root.glob("nodes/n1/events/*rank1*.jsonl")
    path.write_bytes(DEEP + b"\n" + path.read_bytes())
    rlprof("harvest", job.root)
    assert states(job)["torch", 0][0] == "ok" and ("torch", 1) in states(job)


def test_what_is_larger_than_allowed_is_said(tmp_path):
    (tmp_path / "x.json").write_bytes(b"[" + b"1," * 100 + b"1]")
    with pytest.raises(ValueError, match="larger than 100 bytes"):
        foreign.read(tmp_path / "x.json", 100)
    assert len(foreign.read(tmp_path / "x.json", 1000)) == 101
