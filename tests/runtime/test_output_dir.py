"""A request's output_dir on storage that hangs keeps no training step waiting."""

from __future__ import annotations

import time

from tests.hung import hung
from tests.needs import need


def test_a_step_does_not_wait_for_an_output_dir_that_hangs(asked, events, monkeypatch, tmp_path):
    need("fuse", "torch")
    import torch  # noqa: F401 - its import takes long on a busy machine, and is no part of a step

    from rlprof_ops.runtime import captures, profiler

    monkeypatch.setattr(captures, "_MIRROR_S", 0.5)
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
