"""How long before its time `nsys start` is called for a window inside a step, and since when that holds
something.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.nsys_stand_in import answering_nsys

from rlprof_ops.backends.nsight.session_recorder import NsysSessionRecorder


@pytest.mark.parametrize(
    ("before_s", "takes_s", "least"), [(0.0, 0.0, 0.45), (1.2, 0.6, 0.45), (1.2, 1.4, 0.9), (2.2, 2.4, 1.5)]
)
def test_a_window_begins_as_early_as_the_shorter_of_the_last_two_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before_s: float, takes_s: float, least: float
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    recorder = NsysSessionRecorder("s", SimpleNamespace(options={"t": "nvtx"}, flags=()))
    took_s = []
    for sleep_s in (before_s, takes_s):
        assert recorder.lead_s == 0.45
        monkeypatch.setenv("RLPROF_NSYS", str(answering_nsys(tmp_path, start=f"sleep {sleep_s}")))
        called_s = time.monotonic()
        recorder.open(tmp_path / "a.nsys-rep")
        returned_s = time.monotonic()
        took_s.append(returned_s - called_s)
        # not since the pause that whole steps wait for
        assert called_s + sleep_s <= recorder.collects_s <= returned_s - 0.2
    assert least <= recorder.lead_s <= min(1.5, max(0.45, 0.75 * min(took_s)))


@pytest.mark.parametrize(("load", "lead_s"), [(4.0, 0.45), (22.0, 0.66), (40.0, 1.2), (400.0, 1.5)])
def test_a_first_window_begins_as_early_as_others_want_the_processors(
    monkeypatch: pytest.MonkeyPatch, load: float, lead_s: float
) -> None:
    recorder = NsysSessionRecorder("s", SimpleNamespace(options={"t": "nvtx"}, flags=()))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 1000.0, 1000.0))
    assert recorder.lead_s == pytest.approx(lead_s)
