"""A trainer that nobody knows, in a job of one node: its steps come from what it prints, its windows from the
real nsys.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.supervisor.one_node import OneNode
from tests.waits import wait_until

from rlprof_ops.collect.harvest.manifest_table import render

pytestmark = [pytest.mark.timeout(240), pytest.mark.timed, pytest.mark.whole]
STEP_S = 3.0
PRINTS = f"""
import time
time.sleep(1)
for step in range(1, 7):
    begin = time.time()
    time.sleep({STEP_S})
    print("step", step, "loss", 1 / step, "took", begin, time.time())
time.sleep(1)
"""
BAR = f"""
import time
from tqdm import tqdm
time.sleep(1)
with open("own", "w") as own:
    for step in tqdm(range(1, 7), desc="train"):
        begin = time.time()
        time.sleep({STEP_S})
        print(step, begin, time.time(), file=own)
time.sleep(1)
"""
OURS = """
import time
from rlprof_ops.runtime import profiler
prof = profiler.from_env(worker="controller", rank=0)
for step in range(1, 4):
    with prof.step(step), prof.range("generation"):
        time.sleep(0.5)
    print("step", step + 40)
"""
BY = "no trainer recognised; a line of the driver's output with"


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Any]:
    started: list[OneNode] = []

    def start(code: str, log: str, steps: str | None = None) -> OneNode:
        (tmp_path / "train.py").write_text(code)
        capture = {"workers": ["driver"], "steps": steps, "options": {"t": "osrt"}}
        request = {"captures": [capture] if steps else [], "steps_from": {"log": log}}
        node = OneNode.start(
            tmp_path / f"job{len(started)}",
            COMMAND=f"{sys.executable} -u {tmp_path / 'train.py'}",
            RLPROF_REQUEST_JSON=json.dumps(request),
            RLPROF_RECORD="1",
        )
        started.append(node)
        return node

    yield start
    for node in started:
        node.end()


def summary(node: OneNode) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((node.run.path / "recorder" / "summary.json").read_text())
    return found


def recorded(node: OneNode) -> dict[int, tuple[float, float]]:
    """Begin and length of each step, as the recorder has it."""
    return {row[0]: (row[1] / 1e9, row[2]) for row in summary(node)["history"]["steps"]}


def agrees(node: OneNode, own: dict[int, tuple[float, float]]) -> None:
    """Each step lasts from a line to the next, by the driver's own clock around it; but for how late a line
    was seen, as the manifest says. That of the first one it does not say.
    """
    said = re.search(r"a step was known at most (\S+) (s|ms|µs) after its line", node.manifest().heard)
    assert said, node.manifest().heard
    late_s = float(said[1]) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[said[2]]
    assert late_s < 5, said
    steps = recorded(node)
    for step, (begin, seconds) in steps.items():
        first = step == min(steps)
        line = own[step - 1][1] if step - 1 in own else own[step][0] - 1, own[step][0] + 1.5 * first
        after = own[step][1], own[step + 1][0] if step + 1 in own else own[step][1] + 1
        assert line[0] - 0.1 <= begin <= line[1] + late_s + 0.2, (step, steps, own, said)
        assert after[0] - 0.1 <= begin + seconds <= after[1] + late_s + 0.2, (step, steps, own, said)


@pytest.mark.nsys
def test_windows_of_steps_that_are_printed(trainer: Any) -> None:
    node = trainer(PRINTS, r"step (\d+)", "3:5")
    assert node.code(120) == 0, node.output()
    manifest = node.manifest()
    [capture] = manifest.captures
    assert (capture.state, capture.worker, capture.start, capture.stop) == ("ok", "driver", 3, 5), (
        node.output()
    )
    [report] = manifest.reports
    own = {}
    for line in (node.run.logs / "driver.log").read_text().splitlines():
        words = line.split()
        own[int(words[1])] = float(words[-2]), float(words[-1])
    assert report.opened_ns and own[3][0] < report.opened_ns / 1e9 < own[3][1], node.output()
    assert sorted(recorded(node)) == [2, 3, 4, 5, 6]
    agrees(node, own)
    assert re.fullmatch(
        re.escape(BY + r" 'step (\d+)', which ends its step: steps 2 to 6; roles driver; not heard: phases;")
        + r" a step was known at most \S+ m?s after its line; windows were open at most (.+) after their"
        " step began",
        manifest.heard,
    ), manifest.heard
    assert f"heard: {manifest.heard}" in render(manifest)
    assert summary(node)["by"].startswith(BY)


@pytest.mark.nsys
def test_a_window_that_was_open_when_its_step_was_over_is_no_whole_one(trainer: Any) -> None:
    code = PRINTS.replace(f"time.sleep({STEP_S})", "time.sleep(0.1 if step == 3 else 2)")
    for _ in range(3):  # a reader that a busy machine puts aside just then sees both lines at once
        node = trainer(code, r"step (\d+)", "3")
        assert node.code(120) == 0, node.output()
        [capture] = node.manifest().captures
        if capture.state == "truncated":
            break
    assert capture.state == "truncated", node.output()
    assert re.fullmatch(
        r"the window was open .+ after step 3 began, when step 3 was over: nothing waits for a window where"
        r" the driver's output tells the steps; ask for more steps in one window",
        capture.reason,
    ), capture.reason


def test_steps_of_a_progress_bar_without_any_window(trainer: Any) -> None:
    node = trainer(BAR, r"train:.*?(\d+)/\d+ \[")
    wait_until(lambda: (node.run.path / "recorder" / "summary.json").exists(), 60, node.output)
    assert node.code(120) == 0, node.output()
    assert sorted(recorded(node)) == [1, 2, 3, 4, 5, 6]
    rows = [line.split() for line in (node.base / "own").read_text().splitlines()]
    agrees(node, {int(row[0]): (float(row[1]), float(row[2])) for row in rows})
    assert ": steps 1 to 6; roles driver; not heard: phases" in node.manifest().heard


def test_a_program_that_tells_its_steps_is_not_read(trainer: Any) -> None:
    node = trainer(OURS, r"step (\d+)")
    assert node.code(120) == 0, node.output()
    said = "steps_from is not used: a process of the job tells its steps itself"
    assert node.output().count(f"] {said}") == 2, node.output()  # in the job's output and in head.log
    assert sorted(recorded(node)) == [1, 2, 3]
    assert node.manifest().heard == (
        "no trainer recognised; prof.step of the program: steps 1 to 3; phases generation; roles controller"
    )


def test_output_that_never_matches_is_the_reason(trainer: Any) -> None:
    node = trainer("import time; time.sleep(0.5); print('epoch 3')", r"step (\d+)", "3:5")
    assert node.code(120) == 0, node.output()
    [capture] = node.manifest().captures
    assert capture.reason == (
        "training ended before step 3 (no step was seen); nothing was printed as a line of the driver's"
        " output with 'step (\\d+)', which ends its step"
    )


def test_steps_go_on_when_the_supervisor_is_killed(trainer: Any) -> None:
    """And its follower with it: the next one reads what was printed meanwhile."""
    node = trainer(PRINTS, r"step (\d+)")
    log = node.folder / "live" / "driver.log"
    printed = lambda: log.exists() and "step 2 " in log.read_text()  # noqa: E731
    wait_until(printed, 60, node.output, pause_s=0.05)
    node.kill_supervisor()
    assert node.code(120) == 0, node.output()
    assert {2, 5, 6} <= set(recorded(node)) <= {2, 3, 4, 5, 6}, node.output()
    assert node.output().count("steps are known from a line of the driver's output") >= 2
    assert ": steps 2 to 6; roles driver; not heard: phases" in node.manifest().heard
    assert not node.left()
