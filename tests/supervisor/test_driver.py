"""COMMAND's own environment: what the captures that select it add to the job's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.supervisor.nodes import node_of, place_of

from rlprof_ops.request import request_from_dict
from rlprof_ops.supervisor.head import Head


@pytest.mark.parametrize("backend", ["torch", "memory", "nsight"])
def test_the_env_of_a_capture_of_the_driver_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    captures = [
        {"workers": "driver", "steps": "3", "env": {"CUDA_LAUNCH_BLOCKING": "1"}},
        {"workers": "policy", "steps": "3", "env": {"OTHER": "1"}},
        {"workers": "driver", "steps": None, "env": {"OFF": "1"}},
    ]
    node = node_of(place_of(tmp_path))
    node.request = request_from_dict({"captures": [{"backend": backend, **each} for each in captures]})
    env = Head(node)._driver_environment()
    assert env["CUDA_LAUNCH_BLOCKING"] == "1" and not {"OTHER", "OFF"} & env.keys()
    assert node.environment()["CUDA_LAUNCH_BLOCKING"] == "0", "Ray's processes have no part in it"
