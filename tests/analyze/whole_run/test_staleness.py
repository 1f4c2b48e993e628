"""How old the weights were that samples were made with, in numbers that are counted by hand here.

The adapters' own words are tested on the trainers' code: tests/trainers/test_verl_asynchronous.py,
test_skyrl.py, test_verl_requests.py; NeMo RL's below.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import pytest
from tests import upstream

from rlprof_ops.analyze.output.rollout_lines import _staleness
from rlprof_ops.analyze.whole_run import sample_groups
from rlprof_ops.analyze.whole_run.sample_groups import staleness_of
from rlprof_ops.trainers import sample_versions
from rlprof_ops.trainers.nemo_rl import adapter as nemo_rl


def write(root: Path, *rows: object, name: str = "notes_1.jsonl") -> None:
    folder = root / "nodes" / "n0" / "events"
    folder.mkdir(parents=True, exist_ok=True)
    lines = (row if isinstance(row, str) else json.dumps({"event": "samples", **row}) for row in rows)  # type: ignore[dict-item]
    (folder / name).write_text("\n".join(lines))


def test_mini_steps_of_one_step_are_one_row_and_a_mixed_sample_counts_by_its_last_token(tmp_path: Path):
    write(
        tmp_path,
        {"step": 4, "version": 3, "unit": "samples", "made": [[3, 3, 6], [1, 2, 2]]},
        {"step": 4, "version": 3, "made": [[0, 0, 2]]},
        '{"event": "exited"}',
        {"step": 5, "version": 4, "made": [[4, 4, 10]]},
    )
    found = staleness_of(tmp_path)
    assert found is not None
    rows = [(r.step, r.samples, r.mean, r.least, r.most, r.mixed) for r in found.steps]
    assert rows == [(4, 10, 0.8, 0, 3, 2), (5, 10, 0.0, 0, 0, 0)]
    assert (found.samples, found.mean, found.most, found.mixed) == (20, 0.4, 3, 0.1)
    assert found.behind == [(0, 16), (1, 2), (3, 2)]
    assert _staleness(found) == (
        "Staleness of 20 samples: 0.4 versions of the weights behind those that were trained, at most 3"
        " (80 % 0, 10 % 1, 10 % 3); 10 % were made by several versions."
    )


def test_what_makes_no_sense_is_left_out_and_nothing_told_is_nothing_said(tmp_path: Path):
    assert staleness_of(tmp_path) is None
    write(
        tmp_path,
        {"step": "x", "version": 1, "made": [[1, 1, 1]]},
        {"step": 1, "version": 1, "made": [[1], 3]},
    )
    assert staleness_of(tmp_path) is None


def test_a_long_run_keeps_a_part_of_its_steps_and_all_of_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sample_groups, "_MOST_STALE_STEPS", 10)
    write(tmp_path, *({"step": n, "version": n, "made": [[n - 1, n - 1, 4]]} for n in range(1, 26)))
    found = staleness_of(tmp_path)
    assert found is not None and [row.step for row in found.steps] == list(range(1, 26, 3))
    assert (found.samples, found.mean) == (100, 1.0)


def test_one_line_a_batch_and_none_where_nobody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sample_versions.trained(3, 2, [(2, 2)])
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path / "nodes" / "n0"))
    monkeypatch.setenv("RLPROF_NODE", "n0")
    sample_versions.trained(3, 2, [(2, 2), (1, 2), (2, 2)])
    sample_versions.trained(4, 3, [])
    [path] = (tmp_path / "nodes" / "n0" / "events").iterdir()
    [row] = map(json.loads, path.read_text().splitlines())
    assert (row["step"], row["version"], row["unit"]) == (3, 2, "samples")
    assert row["made"] == [[2, 2, 2], [1, 2, 1]]


def test_nemo_rls_replay_buffer_tells_the_versions_of_what_it_hands_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    if why := upstream.missing():
        pytest.skip(why)
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path / "nodes" / "n0"))
    monkeypatch.setenv("RLPROF_NODE", "n0")
    source = upstream.tree("nemo_rl") / "nemo_rl" / "algorithms" / "async_utils" / "replay_buffer.py"
    module = ModuleType("replay_buffer")
    known = {"Any": Any, "Optional": Optional, "Counter": Counter, "_threading": threading}
    vars(module).update(
        upstream.definitions(source, "ReplayBufferImpl", ReplayBufferProtocol=object, **known)
    )
    nemo_rl.install("nemo_rl.algorithms.async_utils.replay_buffer", module)
    buffer = module.ReplayBufferImpl(8, False)
    for made, trained_on in ((1, 3), (2, 3), (3, 3), (3, 4)):
        assert buffer.add({"batch": made}, made, trained_on) == "success"

    def sample(version: int) -> Any:
        return buffer.sample(num_prompt_groups=3, current_weight_version=version, max_age_steps=2)

    assert sample(2) is None
    taken = sample(3)
    capsys.readouterr()
    assert [each["batch"] for each in taken["trajectories"]] == [1, 2, 3]
    found = staleness_of(tmp_path)
    assert found is not None and found.unit == "prompt groups"
    [row] = found.steps
    assert (row.step, row.samples, row.least, row.most) == (4, 3, 0, 2)
    assert row.mean == taken["avg_trajectory_age"] == 1.0
