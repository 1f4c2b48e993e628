"""A request's output_dir gets reports without secrets, and on storage that hangs keeps no training step
waiting.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.hung import hung
from tests.needs import need
from tests.rayenv.stand_ins import own_environment

from rlprof_ops.window.report_file import mirror


def test_a_step_does_not_wait_for_an_output_dir_that_hangs(asked, events, monkeypatch, tmp_path):
    need("fuse", "torch")
    import torch

    with torch.profiler.profile():  # its import and first start take long on a busy machine
        pass

    from rlprof_ops.runtime import profiler
    from rlprof_ops.window import output_dir

    monkeypatch.setattr(output_dir, "COPIES_S", 0.5)
    asked(backend="torch", steps="3")
    import json
    import os

    target = tmp_path / "target"
    target.mkdir()
    request = json.loads(os.environ["RLPROF_REQUEST_JSON"])
    monkeypatch.setenv("RLPROF_REQUEST_JSON", json.dumps({**request, "output_dir": str(target)}))
    with hung(target):
        prof = profiler.from_env(worker="policy_worker", rank=0)
        begun = time.monotonic()
        with prof.step(3):
            pass
        with prof.step(4):
            pass
        prof.close()
        assert time.monotonic() - begun < 60
    [closed] = events("closed")
    assert closed["steps"] == [3, 4]


MOVES = """
import os
from rlprof_ops.runtime import profiler
os.mkdir("outputs")
os.chdir("outputs")
prof = profiler.from_env(worker="trainer", rank=0)
with prof.step(1):
    pass
prof.close()
"""


def test_a_relative_folder_counts_from_where_a_script_of_its_own_began(tmp_path):
    """A program outside a job that goes elsewhere before it makes its profiler, as under hydra.job.chdir."""
    request = {"RLPROF_BACKEND": "memory", "RLPROF_FLAGS": "host", "RLPROF_STEPS": "1"}
    env = own_environment(**request, RLPROF_WORKERS="*", RLPROF_OUTPUT_DIR="copies")
    subprocess.run([sys.executable, "-c", MOVES], env=env, cwd=tmp_path, check=True, timeout=60)
    assert list(tmp_path.glob("copies/memory/trainer/rank0/*.gz"))
    assert not (tmp_path / "outputs/copies").exists()


@pytest.fixture
def elsewhere():
    """A folder in another file system than tests' own, where no report can be linked to."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("how", ["linked", "copied"])
def test_a_report_comes_there_without_secrets(tmp_path, monkeypatch, request, how):
    secret = "hf_abcdefgh12345"
    monkeypatch.setenv("HF_TOKEN", secret)
    there = tmp_path / "out" if how == "linked" else request.getfixturevalue("elsewhere")
    whole = b"NVIDIA Tegra Profiler Report HF_TOKEN=" + secret.encode() + b" [END]"
    report, plain = tmp_path / "node/a.nsys-rep", tmp_path / "node/b.nsys-rep"
    report.parent.mkdir()
    report.write_bytes(whole)
    plain.write_bytes(b"NVIDIA Tegra Profiler Report [END]")
    copy = mirror(report, str(there), "nsight", "w", 0)
    assert copy.read_bytes() == whole.replace(secret.encode(), b"*" * len(secret))
    assert report.read_bytes() == whole  # the sync's to mask
    assert mirror(plain, str(there), "nsight", "w", 0).samefile(plain) == (how == "linked")
    assert sorted(path.name for path in copy.parent.iterdir()) == ["a.nsys-rep", "b.nsys-rep"]
    assert sorted(path.name for path in report.parent.iterdir()) == ["a.nsys-rep", "b.nsys-rep"]
