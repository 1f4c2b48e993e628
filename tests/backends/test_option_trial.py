"""A trial that fails for bad luck is made again; one that fails for its options is not."""

from __future__ import annotations

import asyncio
import os

import pytest

from rlprof_ops.backends.option_trial import Trials

SCRIPT = 'echo x >> "$1"; [ "$(wc -l < "$1")" -ge "$2" ] || { echo "$3"; exit 1; }'


def attempt(tries, works_at: int, says: str) -> tuple[str | None, int]:
    """Why a command that fails with `says` until its `works_at`-th run must not be used, and how often it
    was run.
    """
    command = ["bash", "-c", SCRIPT, "x", str(tries), str(works_at), says]
    reason = asyncio.run(Trials().reason_against(("a",), command, dict(os.environ)))
    return reason, len(tries.read_text().split())


@pytest.mark.parametrize(
    "says",
    [
        "Connection to Agent lost. This is most likely a bug.",
        "[tag_message*] = Local Endpoint is not available.",
        "The proxy is not started.",
        "End of file",
    ],
)
def test_bad_luck_is_tried_again_but_not_for_ever(tmp_path, says):
    assert attempt(tmp_path / "a", 3, says) == (None, 3)
    reason, runs = attempt(tmp_path / "b", 9, says)
    assert runs == 3 and reason is not None and says in reason


def test_a_wrong_option_is_tried_once(tmp_path):
    assert attempt(tmp_path / "a", 2, "unrecognised option") == ("exit code 1: unrecognised option", 1)
