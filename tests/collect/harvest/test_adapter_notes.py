"""What an adapter could not follow stands in the manifest's notes, once for the whole job."""

from __future__ import annotations

import json
from pathlib import Path

from rlprof_ops.collect.harvest.run_state import observe
from rlprof_ops.host.contained_dir import ContainedDir


def test_a_renamed_function_is_a_note(tmp_path: Path):
    (tmp_path / "run.json").write_text(json.dumps({"job": "7", "nodes": ["n1", "n2"]}))
    row = {"event": "adapter_unknown", "trainer": "verl", "module": "verl.utils", "reason": "no _timer"}
    for node, pid in (("n1", 1), ("n1", 2), ("n2", 3)):
        folder = tmp_path / "nodes" / node / "events"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"notes_{pid}.jsonl").write_text(json.dumps(row) + "\nhalf a li")
    with ContainedDir(tmp_path) as run:
        assert list(observe(run).notes) == ["not seen of the trainer: verl: verl.utils: no _timer"]
