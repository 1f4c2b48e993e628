"""Requests of SGLang as we write them down, beside what its own code says of them.

SGLang needs a GPU. What ran here is its TokenizerManager alone, of releases with each shape of its states;
its source comes from the package index, and what it needs beside from verl's environment.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from rlprof_ops.job.knobs import import_path
from rlprof_ops.runtime.request_log import EngineRequest
from tests.trainers import environments, releases

WITHIN_S = 0.005
SCRIPT = environments.HERE / "sglang" / "real_tokenizer.py"


@pytest.mark.parametrize("version", ["0.5.2", "0.5.6", "0.5.9", "0.5.23"])
def test_a_request_is_what_sglang_says_of_it(tmp_path: Path, version: str) -> None:
    if why := environments.lacking("verl"):
        pytest.skip(why)
    source, python = releases.source_of("sglang", version), environments.ensure("verl").python
    env = {**os.environ, "RLPROF_NODE_DIR": str(tmp_path), "PYTHONPATH": f"{import_path()}:{source}"}
    argv = [str(python), "-P", str(SCRIPT)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "requests").iterdir()
    first, *lines = map(json.loads, path.read_text().splitlines())
    assert (first["engine"], first["fields"]) == ("sglang", list(EngineRequest._fields))
    rows = {row.id: row for row in (EngineRequest(*line) for line in lines)}
    told = {each["meta_info"]["id"]: each for each in json.loads(done.stdout.splitlines()[-1])}
    assert len(lines) == len(told) == 4
    for name, row in rows.items():
        said, times = told[name]["meta_info"], told[name]["times"]
        assert row.reason == said["finish_reason"]["type"]
        if row.reason != "abort":
            assert (row.prompt_tokens, row.tokens) == (said["prompt_tokens"], said["completion_tokens"])
            assert row.preemptions == said.get("num_retractions", row.preemptions)
            assert (row.finished_ns - row.arrival_ns) / 1e9 == pytest.approx(
                said["e2e_latency"], abs=WITHIN_S
            )
        assert row.arrival_ns / 1e9 == pytest.approx(times["created_time"], abs=WITHIN_S)
        for ours, theirs in (
            (row.first_token_ns, times["first_token_time"]),
            (row.finished_ns, times["finished_time"]),
        ):
            if theirs is not None:
                assert ours is not None and ours / 1e9 == pytest.approx(theirs, abs=WITHIN_S)
    assert (rows["given up"].prompt_tokens, rows["given up"].tokens) == (2, 1)
    assert rows["one"].group == rows["two"].group != rows["given up"].group
    assert [(name, row.turn, row.first) for name, row in rows.items() if row.turn > 1] == [
        ("later", 2, "one")
    ]
    queued = [row for row in rows.values() if row.queued_ns is not None]
    assert all(row.scheduled_ns == pytest.approx(row.queued_ns + 50_000_000, abs=1000) for row in queued)
    assert bool(queued) == (version == "0.5.23")
