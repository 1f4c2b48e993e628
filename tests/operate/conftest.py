"""A fake Slurm on PATH, a home of its own, and run folders as jobs leave them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tests.operate.fake_slurm import FakeSlurm

REQUEST = {
    "captures": [
        {"backend": "nsight", "workers": ["policy_worker"], "steps": "3:5,7", "options": {"t": "nvtx"}}
    ]
}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """An empty shell with a fake Slurm; the current folder is `work`, with a space in its path."""
    import os

    for name in list(os.environ):
        if name.startswith(("RLPROF_", "NRL_", "SLURM", "SBATCH")) or name in ("COMMAND", "BASE_LOG_DIR"):
            monkeypatch.delenv(name)
    slurm = FakeSlurm.make(tmp_path / "slurm")
    work = tmp_path / "my work"
    work.mkdir()
    monkeypatch.setenv("PATH", slurm.path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(work)
    yield slurm
    assert slurm.called("sacct") == []


class RunFolder:
    """Writes a run folder by hand, as docs/contracts.md says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("logs", "nodes/n1/events", ".secrets"):
            (path / name).mkdir(parents=True)

    def record(
        self, job: str = "4711", cause: str = "running", exit_code: int | None = None, **more: object
    ) -> None:
        data = {
            "schema": 1,
            "job": job,
            "nodes": ["n1", "n2"],
            "head": "n1",
            "command": "python train.py",
            "request": REQUEST,
            "world": {},
            "driver": {
                "started_ns": 5,
                "ended_ns": 9 if exit_code is not None else None,
                "exit_code": exit_code,
                "signal": None,
            },
            "end": {"cause": cause, "detail": "", "phases_s": {}},
        }
        (self.path / "run.json").write_text(json.dumps({**data, **more}))

    def worker(self, rank: int, *events: dict[str, object], last_step: int = 0, world_size: int = 2) -> None:
        """One policy worker's events and the step it is in."""
        name = f"policy_worker_rank{rank}_n1_{100 + rank}"
        first = {
            "event": "registered",
            "t_ns": 1,
            "worker": "policy_worker",
            "rank": rank,
            "world_size": world_size,
            "pid": 100 + rank,
            "host": "n1",
            "backends": ["nsight"],
        }
        lines = [
            first,
            *({"t_ns": 2, "backend": "nsight", "phase": None, "report": "x", **event} for event in events),
        ]
        folder = self.path / "nodes" / "n1" / "events"
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / f"{name}.step").write_bytes(struct.pack("<q", last_step))

    def manifest(self, *states: tuple[str, int | None, int, int, str], job: str = "4711") -> None:
        """(worker, rank, start, stop, state) of each capture."""
        captures = [
            {
                "id": f"nsight/{worker}/rank{rank}/step{start}-{stop - 1}",
                "backend": "nsight",
                "worker": worker,
                "rank": rank,
                "start": start,
                "stop": stop,
                "phase": None,
                "state": state,
                "reason": "" if state == "ok" else "lost",
                "host": None,
                "report": None,
                "more_reports": [],
            }
            for worker, rank, start, stop, state in states
        ]
        data = {"schema": 1, "job": job, "captures": captures, "reports": [], "world": {}, "notes": []}
        (self.path / "manifest.json").write_text(json.dumps(data))


@pytest.fixture
def run_folder(fake, tmp_path):
    return RunFolder(tmp_path / "my work" / "4711-logs")
