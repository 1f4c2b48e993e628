"""A request's output_dir gets reports without secrets, and on storage that hangs keeps no training step
waiting.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest
from tests.hung import hung
from tests.needs import need

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
        assert time.monotonic() - begun < 15
    [closed] = events("closed")
    assert closed["steps"] == [3, 4]


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
