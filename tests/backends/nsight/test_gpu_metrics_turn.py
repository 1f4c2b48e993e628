"""GPU metrics: one session of a node samples all of its GPUs, and the others' windows open without them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.nsys_stand_in import answering_nsys

import rlprof_ops
from rlprof_ops.backends.contract import CaptureError
from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.backends.nsight.node_turn import NodeTurn
from rlprof_ops.backends.nsight.nsys_options import samples_the_node
from rlprof_ops.backends.nsight.session_recorder import GPU_METRICS_TURN, NsysSessionRecorder

ALL = {"gpu-metrics-devices": "all", "gpu-metrics-frequency": "1000"}
NOTES = 'echo "$*" >> "$0.started"; echo "$4" > "$0.report.$2"'
WRITES = 'printf "NVIDIA Tegra Profiler Report [END]" > "$(cat "$0.report.$2")"'


@pytest.fixture
def ranks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[dict[str, str]], tuple[NsysSessionRecorder, NsysSessionRecorder]]:
    """Two ranks of one node, whose sessions take windows by something that answers as nsys does."""
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))

    def made(options: dict[str, str]) -> tuple[NsysSessionRecorder, NsysSessionRecorder]:
        nsys = answering_nsys(tmp_path, start=NOTES, stop=WRITES)
        monkeypatch.setenv("RLPROF_NSYS", str(nsys))
        spec = SimpleNamespace(options=options, flags=())
        return NsysSessionRecorder("one", spec), NsysSessionRecorder("two", spec)

    return made


def started(folder: Path) -> list[bool]:
    """Of each `nsys start` whether it asked for GPU metrics."""
    (notes,) = folder.glob("*.started")
    return ["--gpu-metrics-" in line for line in notes.read_text().splitlines()]


def test_the_first_window_of_a_node_has_them_and_the_next_one_after_it(ranks, tmp_path: Path) -> None:
    one, two = ranks(ALL)
    one.open(tmp_path / "a.nsys-rep")
    two.open(tmp_path / "b.nsys-rep")
    one.close().wait()
    two.close().wait()
    two.open(tmp_path / "c.nsys-rep")
    one.open(tmp_path / "d.nsys-rep")
    assert started(tmp_path) == [True, False, True, False]
    # the holder alone had the device and the frequency; nothing else of its line differs
    lines = next(tmp_path.glob("*.started")).read_text().splitlines()
    assert "--gpu-metrics-devices=all" in lines[0] and "--gpu-metrics-frequency=1000" in lines[0]
    assert [w for w in lines[0].split()[3:] if "gpu-metrics" not in w and "/" not in w] == [
        w for w in lines[1].split()[3:] if "/" not in w
    ]
    two.close().wait()
    one.close().wait()


@pytest.mark.parametrize(
    "options", [{}, {"gpu-metrics-devices": "cuda-visible"}, {"gpu-metrics-devices": "none"}]
)
def test_what_every_rank_may_ask_for_is_asked_by_every_rank(ranks, tmp_path: Path, options) -> None:
    assert not samples_the_node(SimpleNamespace(options=options, flags=()))
    one, two = ranks(options)
    one.open(tmp_path / "a.nsys-rep")
    two.open(tmp_path / "b.nsys-rep")
    assert started(tmp_path) == [bool(options)] * 2
    one.close().wait()
    two.close().wait()


def test_a_window_that_does_not_open_gives_them_back(
    ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = ranks(ALL)
    (tmp_path / "broken").mkdir()
    working = os.environ["RLPROF_NSYS"]
    broken = answering_nsys(tmp_path / "broken", start="echo no rights >&2; exit 1")
    monkeypatch.setenv("RLPROF_NSYS", str(broken))
    with pytest.raises(CaptureError):
        one.open(tmp_path / "a.nsys-rep")
    monkeypatch.setenv("RLPROF_NSYS", working)
    turn = NodeTurn.taken(GPU_METRICS_TURN)
    assert turn is not None
    turn.give_back()


def test_a_rank_that_is_killed_leaves_its_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(rlprof_ops.__file__).parents[1]))
    program = (
        "import sys, time\nfrom rlprof_ops.backends.nsight.node_turn import NodeTurn\n"
        "turn = NodeTurn.taken('gpu-metrics')\nprint(turn is not None, flush=True)\ntime.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "True\n"
        assert NodeTurn.taken(GPU_METRICS_TURN) is None
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait(60)
    turn = NodeTurn.taken(GPU_METRICS_TURN)
    assert turn is not None
    turn.give_back()
    turn.give_back()


def test_where_no_file_tells_it_is_everybodys_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path / "gone"))
    assert NodeTurn.taken(GPU_METRICS_TURN) is not None
    # a link that somebody has put there is not followed
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    (tmp_path / ".gpu-metrics.turn").symlink_to(tmp_path / "elsewhere")
    assert NodeTurn.taken(GPU_METRICS_TURN) is not None and not (tmp_path / "elsewhere").exists()


def test_the_words_of_nsys_start() -> None:
    spec = SimpleNamespace(options=ALL | {"sample": "cpu"}, flags=())
    with_them, without = (nsys_cli.start_argv("s", "/o", spec, gpu_metrics=mine) for mine in (True, False))
    assert set(with_them) - set(without) == {"--gpu-metrics-devices=all", "--gpu-metrics-frequency=1000"}
    assert "--sample=cpu" in without
