"""A real trainer that is told to end inside a window: its handler calls ours, and it saves what it has."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from rlprof_ops.job.knobs import import_path
from tests.trainers import environments

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 300)]
ASKED = {"RLPROF_STEPS": "2:6", "RLPROF_WORKERS": "trainer", "RLPROF_BACKEND": "torch"}


@pytest.mark.parametrize("asked", [{}, ASKED], ids=["nothing asked", "in a window"])
def test_lightning_saves_its_checkpoint_after_the_step(asked: dict[str, str], tmp_path: Path) -> None:
    if why := environments.lacking("lightning"):
        pytest.skip(why)
    python = environments.ensure("lightning").python
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RLPROF_", "SLURM_"))}
    done = subprocess.run(
        [str(python), str(environments.HERE / "lightning" / "told_to_end.py")],
        cwd=tmp_path,
        env={**kept, **asked, "PYTHONPATH": import_path(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.stdout.splitlines() == ["trained 1", "trained 2", "trained 3", "saved after SIGTERMException"]
    assert done.returncode == 0 and (tmp_path / "last.ckpt").is_file(), done.stderr[-3000:]
    if asked:
        lines = [line for log in tmp_path.rglob("trainer_rank0_*.jsonl") for line in log.open()]
        (closed,) = [event for event in map(json.loads, lines) if event["event"] == "closed"]
        assert closed["steps"] == [2, 6] and closed["seen"] == [2, 3] and closed["partial"] is True
