"""Work on a thread that may hang keeps nobody waiting."""

from __future__ import annotations

import threading
import time

import pytest

from rlprof_ops.host import background


def test_what_the_work_gives_and_raises_comes_back():
    assert background.in_time(int, "7", seconds=30) == 7
    with pytest.raises(ValueError, match="seven"):
        background.in_time(int, "seven", seconds=30)


def test_work_that_hangs_is_left_behind():
    never, begin = threading.Event(), time.monotonic()
    with pytest.raises(TimeoutError, match="200 ms"):
        background.in_time(never.wait, seconds=0.2)
    assert time.monotonic() - begin < 20
    never.set()
