"""Reading on a Ray cluster gives what reading here gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.fake_run import make_run

from rlprof_ops.errors import RlprofError

pytestmark = pytest.mark.ray
PACKAGE = str(Path(__file__).resolve().parents[3] / "python")


def numbers(answer: dict[str, Any]) -> dict[str, Any]:
    answer.pop("made_ns")
    for row in answer["coverage"]["reports"]:
        row.pop("seconds")
    return answer


def test_a_cluster_gives_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    make_run(tmp_path, ranks=4, slow_rank=1)
    (
        tmp_path
        / "profiles"
        / "torch"
        / "policy_worker"
        / "rank0"
        / "policy_worker_rank0_step9-9_n0_1000.pt.trace.json.gz"
    ).write_bytes(b"\x1f\x8bno")
    here = numbers(answer_of(tmp_path, jobs=1, cache=False))
    monkeypatch.setenv("PYTHONPATH", PACKAGE)
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    try:
        there = numbers(answer_of(tmp_path, engine="ray", cache=False))
    finally:
        ray.shutdown()
    assert there == here
    assert len(here["coverage"]["unread"]) == 1


def test_without_a_cluster_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    make_run(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "1")
    monkeypatch.setenv("RAY_gcs_server_request_timeout_seconds", "2")
    import ray

    def refused(*_: object, **__: object) -> None:
        raise ConnectionError("no cluster")

    monkeypatch.setattr(ray, "init", refused)
    with pytest.raises(RlprofError, match="no Ray cluster to connect to"):
        answer_of(tmp_path, engine="ray")
