"""What we say on stderr, which may be in any state."""

from __future__ import annotations

import sys

import pytest

from rlprof_ops.host.log_line import log


@pytest.mark.parametrize(
    "error", [OSError(9, "closed"), ValueError("closed"), RuntimeError("reentrant call inside a writer")]
)
def test_a_line_that_cannot_be_written_is_left_out(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stderr:
        def write(self, text: str) -> int:
            raise error

    monkeypatch.setattr(sys, "stderr", Stderr())
    log("hello")
    monkeypatch.setattr(sys, "stderr", None)
    log("hello")
