"""Steps from what a driver prints: the follower as a process of its own, before the relay of a node."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.waits import wait_until

from rlprof_ops.request.steps_from import StepsFrom
from rlprof_ops.runtime import step_clock
from rlprof_ops.supervisor.node.helper_processes import module
from rlprof_ops.supervisor.steps import driver_log
from rlprof_ops.supervisor.steps.step_relay import StepRelay

PRINTS = """
import sys, time
for step in map(int, sys.argv[1].split(",")):
    begin = time.time()
    time.sleep(0.3)
    print("step", step, "loss", 0.5, "took", begin, time.time())
time.sleep(0.2)
"""
BARS = """
import json, sys, time
from tqdm import tqdm
times = []
for step in tqdm(range(6), desc="train"):
    begin = time.time()
    time.sleep(0.3)
    times.append([step + 1, begin, time.time()])
print(json.dumps(times))
"""


@dataclass
class NoWindows:
    """Stands for the windows of a node: test_windows.py has the real ones."""

    begun: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    async def begin(self, step: int) -> None:
        self.begun.append(step)

    def end(self, step: int) -> None:
        self.ended.append(step)

    def gap(self, reason: str) -> None:
        self.gaps.append(reason)

    async def resume(self, step: int, running: bool) -> None:
        return None


class Following:
    """A node folder with a relay, and a follower of `driver.log`."""

    def __init__(self, folder: Path, rule: StepsFrom) -> None:
        self.folder, self.rule, self.log = folder, rule, folder / "driver.log"
        (folder / "events").mkdir()
        self.windows = NoWindows()
        self.led_by_process: list[bool] = []
        self.process: subprocess.Popen[str]

    async def relay(self) -> StepRelay:
        async def tell(message: object) -> None:
            return None

        told = lambda: self.led_by_process.append(True)  # noqa: E731
        say = print
        relay = StepRelay(self.folder, "n1", self.windows, tell, say, told=told)  # type: ignore[arg-type]
        await relay.listen(list)
        return relay

    def start(self) -> None:
        words = driver_log.words_of(self.rule, self.log, os.getpid())
        env = os.environ | {
            "RLPROF_NODE_DIR": str(self.folder),
            "RLPROF_NODE": "n1",
            "RLPROF_RECORD": "1",
            "PYTHONPATH": ":".join(sys.path),
        }
        self.process = subprocess.Popen(
            module("supervisor.steps.driver_log", *words), env=env, stdout=subprocess.PIPE, text=True
        )

    def end(self) -> list[str]:
        """What it said."""
        self.process.terminate()
        out, _ = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, out
        return [json.loads(line)["say"] for line in out.splitlines()]

    def rows(self, event: str) -> list[dict[str, Any]]:
        found = [row for path in self.folder.glob("events/*.jsonl") for row in path.read_text().splitlines()]
        return [row for row in map(json.loads, found) if row["event"] == event]

    def steps(self) -> dict[int, tuple[float, float]]:
        """The steps that count, in Unix seconds."""
        told = [row for row in self.rows("step") if not row.get("cut")]
        return {row["step"]: (row["begin_ns"] / 1e9, row["end_ns"] / 1e9) for row in told}

    def print(self, text: str) -> None:
        with open(self.log, "a") as file:
            file.write(text)

    def run(self, scene: Callable[[], None]) -> None:
        """`scene` in a thread beside the relay."""

        async def whole() -> None:
            relay = await self.relay()
            try:
                await asyncio.to_thread(scene)
                await asyncio.sleep(0.3)
            finally:
                relay.close()

        asyncio.run(whole())

    def heard(self, step: int) -> None:
        wait_until(lambda: step in self.windows.begun, 20, lambda: str(self.windows), pause_s=0.01)


@contextmanager
def following(folder: Path, log: str, when: str = "ends") -> Iterator[Following]:
    made = Following(folder, StepsFrom(log, when))
    made.start()
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait(20)


def ready(made: Following) -> None:
    """Until it has heard a step."""
    looks(made)
    made.print("step 0 \n" if made.rule.when == "ends" else "step 1 \n")
    made.heard(1)


def drive(made: Following, code: str, *words: str) -> str:
    """A driver that nobody instrumented, its output unbuffered."""
    with open(made.log, "ab") as log:
        argv = [sys.executable, "-u", "-c", code, *words]
        subprocess.run(argv, stdout=log, stderr=log, check=True, timeout=60)
    return made.log.read_text()


def close(told: dict[int, tuple[float, float]], own: dict[int, tuple[float, float]], s: float) -> bool:
    return all(abs(told[n][0] - own[n][0]) < s and abs(told[n][1] - own[n][1]) < s for n in own)


@pytest.mark.timed
@pytest.mark.parametrize("when", ["ends", "begins"])
def test_steps_are_those_that_are_printed(tmp_path: Path, when: str) -> None:
    own: dict[int, tuple[float, float]] = {}
    with following(tmp_path, r"step (\d+)", when) as made:

        def scene() -> None:
            ready(made)
            steps = range(1, 13) if when == "ends" else range(2, 13)
            for line in drive(made, PRINTS, ",".join(map(str, steps))).splitlines():
                if "took" in line:
                    words = line.split()
                    own[int(words[1])] = float(words[-2]), float(words[-1])
            assert not made.end()

        made.run(scene)
    if when == "begins":  # a line is printed when the step's own work is over: that is where it begins here
        own = {step: (own[step][1], own[step + 1][1]) for step in range(2, 12)}
    else:
        del own[1]  # it began with a line of ours
    assert close(made.steps(), own, 0.15), (made.steps(), own)
    last = 13 if when == "ends" else 12
    assert made.windows.begun == list(range(1, last + 1)) and made.windows.ended == made.windows.begun
    assert not made.windows.gaps and made.rows("ended")[0]["last_step"] == 12
    assert 0 < made.rows("ended")[0]["late_s"] < 1


@pytest.mark.timed
def test_a_progress_bar_tells_its_steps_from_the_first_one_on(tmp_path: Path) -> None:
    with following(tmp_path, r"train:.*?(\d+)/\d+ \[") as made:
        own: dict[int, tuple[float, float]] = {}

        def scene() -> None:
            looks(made)
            told = json.loads(drive(made, BARS).splitlines()[-1])
            own.update({step: (begin, end) for step, begin, end in told})
            assert not made.end()

        made.run(scene)
    assert sorted(own) == [1, 2, 3, 4, 5, 6] and close(made.steps(), own, 0.15), (made.steps(), own)


def looks(made: Following) -> None:
    """Until it looks at the output: it takes SIGTERM in hand before."""

    def caught() -> bool:
        status = Path(f"/proc/{made.process.pid}/status").read_text()
        mask = next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1]
        return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)

    wait_until(caught, 20, pause_s=0.05)
    time.sleep(0.2)


def test_an_expression_that_takes_for_ever_costs_a_line_and_is_said(tmp_path: Path) -> None:
    with following(tmp_path, r"^(?:a+)+ step (\d+)") as made:
        said: list[str] = []

        def scene() -> None:
            made.print("a step 0 \n")
            made.heard(1)
            made.print("a" * 60 + "!\n" + "a step 1 \n")
            made.heard(2)
            said.extend(made.end())

        made.run(scene)
    assert len(said) == 1 and "takes more than 50.0 ms on a line of 61 characters" in said[0], said


def test_endless_lines_colours_and_parts_of_a_number(tmp_path: Path) -> None:
    with following(tmp_path, r"step (\d+)") as made:

        def scene() -> None:
            ready(made)
            made.print("x" * (5 << 20) + " step 7 ")
            made.print("\n\x1b[36m(Worker pid=3)\x1b[0m step \x1b[1m1\x1b[0m loss\n")
            made.heard(2)
            made.print("step 1")
            made.print("2")
            made.print(" of 99")
            made.heard(13)
            assert made.windows.begun == [1, 2, 13]
            made.end()

        made.run(scene)


def test_numbers_that_jump_or_go_back_are_said_once(tmp_path: Path) -> None:
    with following(tmp_path, r"step (\d+)") as made:
        said: list[str] = []

        def scene() -> None:
            ready(made)
            for number in (10, 20, 21, 3, 4, 22):
                made.print(f"step {number} \n")
                if number > 4:
                    made.heard(number + 1)
                else:  # of what comes at once the last one counts
                    time.sleep(0.2)
            said.extend(made.end())

        made.run(scene)
    assert made.windows.begun == [1, 11, 21, 22, 23]
    assert len(made.windows.gaps) == 2 and set(made.steps()) == {21, 22}
    assert [text.split(":")[1] for text in said] == [
        " the output goes from 0 to 10",
        " the output goes back from 21 to 3",
    ]


def test_a_process_that_tells_steps_goes_before_its_output(tmp_path: Path) -> None:
    with following(tmp_path, r"step (\d+)") as made:

        def scene() -> None:
            ready(made)
            lead = step_clock.lead(str(tmp_path), None)
            assert lead is not None
            if lead.begin(5):
                lead.opened(5)
            made.print("step 1 \nstep 2 \n")
            lead.end(5)
            lead.begin(6)
            made.heard(6)
            made.end()

        made.run(scene)
    assert made.windows.begun == [1, 5, 6] and made.windows.ended == [5]
    assert made.led_by_process == [True]


def test_a_follower_that_was_killed_goes_on_where_the_output_is(tmp_path: Path) -> None:
    with following(tmp_path, r"step (\d+)") as made:

        def scene() -> None:
            ready(made)
            made.print("step 1 \n")
            made.heard(2)
            made.process.kill()
            made.process.wait(20)
            made.print("step 2 \nstep 3 \n")
            made.start()
            made.heard(4)
            made.print("step 4 \n")
            made.heard(5)
            made.print("step 5 \n")
            made.heard(6)
            made.end()

        made.run(scene)
    assert made.windows.begun == [1, 2, 4, 5, 6]
    assert set(made.steps()) == {1, 5}, "step 4 began while nobody looked"
