"""The step clock over a real control channel: driver's socket, node, head, nodes, windows, driver."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rlprof_ops.host.ports import free_port
from rlprof_ops.request import CaptureSpec, ProfileRequest, Steps, Window
from rlprof_ops.request.step_part import StepPart
from rlprof_ops.runtime import request_count, step_clock
from rlprof_ops.runtime.clock_file import ClockFile
from rlprof_ops.runtime.leader import Leader
from rlprof_ops.runtime.process.event_log import EventLog
from rlprof_ops.runtime.trainer_request import with_request
from rlprof_ops.supervisor.control_channel import ControlServer, Joined, NodeLink
from rlprof_ops.supervisor.steps.session_windows import Windows
from rlprof_ops.supervisor.steps.step_relay import StepRelay
from rlprof_ops.supervisor.steps.step_requests import RequestsCounted, RequestShares


class SlowWindows:
    """Stands for the windows of a node (test_windows.py has the real ones): opening takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.phases: list[tuple[int, str]] = []
        self.resumed: list[tuple[int, bool]] = []
        self.parts: list[StepPart] = []

    async def begin(self, step: int) -> None:
        await asyncio.sleep(self.seconds)
        self.begun.append(step)

    def end(self, step: int) -> None:
        self.ended.append(step)

    def phase(self, step: int, name: str) -> None:
        self.phases.append((step, name))

    def take(self, request: ProfileRequest) -> bool:
        self.asked = request
        return True

    async def resume(self, step: int, running: bool) -> None:
        self.resumed.append((step, running))


REQUEST = ProfileRequest((CaptureSpec(workers=("*",), steps=Steps.of([Window(3, 5)])),))


class Cluster:
    """A head and one node in one loop; the driver may be on either."""

    def __init__(self, tmp_path: Path, opening_s: float) -> None:
        self.windows = {name: SlowWindows(opening_s) for name in ("n1", "n2")}
        self.taken: list[ProfileRequest] = []
        self.folders = {name: tmp_path / ("x" * 90) / name for name in ("n1", "n2")}
        for folder in self.folders.values():
            folder.mkdir(parents=True)

    async def start(self) -> None:
        said: list[str] = []
        port = free_port()
        self.head = ControlServer("token", lambda node, message: self.relays["n1"].receive(node, message))
        self.relays = {
            "n1": StepRelay(
                self.folders["n1"],
                "n1",
                self.windows["n1"],  # type: ignore[arg-type]
                self.head.send,
                said.append,
                self.taken.append,
            )
        }
        await self.head.listen("127.0.0.1", port)
        deadline = asyncio.get_running_loop().time() + 5
        self.node = await NodeLink.join("127.0.0.1", port, "token", Joined("n2", "127.0.0.1"), deadline)
        relay = StepRelay(self.folders["n2"], "n2", self.windows["n2"], self.node.send, said.append)  # type: ignore[arg-type]
        self.relays["n2"] = relay
        await self.relays["n1"].listen(lambda: ["n2"])
        await relay.listen()
        self.listening = asyncio.create_task(self.node.listen(lambda message: relay.receive("n1", message)))

    async def stop(self) -> None:
        self.listening.cancel()
        for relay in self.relays.values():
            relay.close()
        self.node.close()
        await self.head.close()


@pytest.mark.timed
@pytest.mark.parametrize("driver", ["n1", "n2"])
def test_the_driver_waits_for_the_opening_alone_and_every_node_knows_the_step(tmp_path: Path, driver: str):
    async def scene() -> list[float]:
        cluster = Cluster(tmp_path, 0.3)
        await cluster.start()

        def drive() -> list[float]:
            lead = step_clock.lead(str(cluster.folders[driver]), REQUEST)
            assert lead is not None
            took = []
            for step in range(1, 7):
                began = time.perf_counter()
                if lead.begin(step):
                    lead.opened(step)
                    states = [ClockFile(folder).read() for folder in cluster.folders.values()]
                    assert [(state.step, state.running) for state in states] == [(step, True)] * 2
                took.append(time.perf_counter() - began)
                lead.end(step)
            return took

        took = await asyncio.to_thread(drive)
        await asyncio.sleep(0.5)
        for windows in cluster.windows.values():
            assert sorted(windows.begun) == [1, 2, 3, 4, 5, 6] and windows.ended == [1, 2, 3, 4, 5, 6]
        await cluster.stop()
        return took

    took = asyncio.run(scene())
    # The process's first step, the one that opens the window, and the one after it wait; no other does.
    assert all(0.25 < took[step - 1] < 5 for step in (1, 3, 5)), took
    assert all(took[step - 1] < 0.2 for step in (2, 4, 6)), took


@pytest.mark.parametrize("driver", ["n1", "n2"])
def test_every_node_hears_of_the_phase_that_a_window_counts_from(tmp_path: Path, driver: str):
    part = StepPart(60.0, "generation", 20.0)
    request = ProfileRequest((CaptureSpec(workers=("*",), steps=Steps.of([Window(2, 4)]), part=part),))

    async def scene() -> None:
        cluster = Cluster(tmp_path, 0)
        await cluster.start()

        def drive() -> None:
            leader = Leader(
                EventLog(tmp_path / "leader.jsonl"), step_clock.lead(str(cluster.folders[driver]), request)
            )
            for step in (1, 2, 3):
                waits = leader.begin(step)
                assert waits is (step == 1)  # nothing opens with these steps
                leader.opened(step, waits)
                for name in ("reward", "generation", "generation"):
                    leader.phase_ends(leader.phase_begins(name))
                leader.end(step)

        await asyncio.to_thread(drive)
        heard = [(step, "generation") for step in (1, 2, 3)]
        until = asyncio.get_running_loop().time() + 60
        while any(len(windows.ended) < 3 for windows in cluster.windows.values()):
            assert asyncio.get_running_loop().time() < until
            await asyncio.sleep(0.05)
        assert [windows.phases for windows in cluster.windows.values()] == [heard, heard]
        await cluster.stop()

    asyncio.run(scene())


def test_every_node_hears_when_the_requests_of_all_engines_have_got_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two engines, one on each node, whose counts go the real way from a process to the head."""
    parts = [StepPart(done=50.0), StepPart(tokens=(20, 30))]
    request = ProfileRequest(
        tuple(CaptureSpec(workers=("*",), steps=Steps.of([Window(1, 3)]), part=part) for part in parts)
    )
    monkeypatch.setenv("RLPROF_REQUEST_JSON", request.to_json())
    counts = {"n1": (0, 0, 0), "n2": (0, 0, 0)}
    reads: Counter[str] = Counter()

    def read(name: str) -> tuple[int, int, int]:
        reads[name] += 1
        return counts[name]

    async def until(is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not is_so() and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    async def scene() -> None:
        cluster = Cluster(tmp_path, 0)
        for windows in cluster.windows.values():
            windows.parts = parts
        await cluster.start()
        for name, folder in cluster.folders.items():
            monkeypatch.setenv("RLPROF_NODE_DIR", str(folder))
            request_count.tell(functools.partial(read, name))
            await until(lambda name=name: reads[name] > 1)  # what it read first has been told

        async def heard(*names: str) -> None:
            """What both nodes have heard of since, and in a while after it in which more would come."""
            await until(
                lambda: all(len(windows.phases) >= len(names) for windows in cluster.windows.values())
            )
            await asyncio.sleep(0.5)
            for windows, folder in zip(cluster.windows.values(), cluster.folders.values(), strict=True):
                assert [name for _, name in windows.phases] == list(names)
                assert set(names) <= ClockFile(folder).read().phases.keys()
                windows.phases.clear()

        lead = step_clock.lead(str(cluster.folders["n2"]), request)
        assert lead is not None

        async def begin(step: int) -> None:
            lead.begin(step)
            await until(lambda: all(step in windows.begun for windows in cluster.windows.values()))

        await begin(1)
        counts["n1"] = (8, 3, 19)
        await heard()
        counts["n2"] = (4, 2, 10)  # 5 of 12
        await heard()
        counts["n2"] = (4, 3, 21)
        await heard("50% of the requests", "token 20")
        counts["n1"], counts["n2"] = (8, 8, 0), (4, 4, 40)
        await heard("token 30")
        lead.end(1)
        await begin(2)
        counts["n1"] = (10, 10, 1)  # 2 of at least 12
        await heard()
        counts["n1"], counts["n2"] = (16, 14, 1), (8, 4, 1)
        await heard("50% of the requests")
        await cluster.stop()

    asyncio.run(scene())


def test_a_step_that_validates_too_does_not_hide_the_share_of_the_next_one():
    requests, part = RequestShares(), StepPart(done=50.0)
    came = 0
    assert not requests.take("n1", RequestsCounted(7, 0, 0, 0), [part])
    for step, count in enumerate((10, 40, 10, 10)):
        requests.begin()
        for done in range(1, count + 1):
            told = requests.take("n1", RequestsCounted(7, came + count, came + done, 0), [part])
            assert told == (["50% of the requests"] if done == count / 2 else []), (step, done)
        came += count
        requests.end()


@pytest.mark.timed
def test_a_node_that_never_opens_costs_the_knob_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RLPROF_OPEN_WAIT_SECONDS", "0.5")

    async def scene() -> float:
        cluster = Cluster(tmp_path, 60)
        await cluster.start()

        def drive() -> float:
            lead = step_clock.lead(str(cluster.folders["n1"]), REQUEST)
            assert lead is not None
            began = time.perf_counter()
            assert lead.begin(1)
            lead.opened(1)
            return time.perf_counter() - began

        took = await asyncio.to_thread(drive)
        await cluster.stop()
        return took

    assert 0.4 < asyncio.run(scene()) < 3


@pytest.mark.parametrize("driver", ["n1", "n2"])
def test_a_trainers_own_request_reaches_every_node(
    tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch
):
    async def scene() -> None:
        cluster = Cluster(tmp_path, 0)
        await cluster.start()
        monkeypatch.setenv("RLPROF_NODE_DIR", str(cluster.folders[driver]))
        assert await asyncio.to_thread(step_clock.tell_request, REQUEST.to_json())
        await asyncio.sleep(0.3)
        assert cluster.taken == [REQUEST]
        for name, windows in cluster.windows.items():
            assert windows.asked == REQUEST
            env = {"RLPROF_NODE_DIR": str(cluster.folders[name])}
            assert with_request(env)["RLPROF_REQUEST_JSON"] == REQUEST.to_json()
        await cluster.stop()

    asyncio.run(scene())


def test_what_a_job_was_asked_for_counts_more_than_the_trainers_own_request(tmp_path: Path):
    asked = Windows(tmp_path, REQUEST, print)
    assert not asked.take(ProfileRequest((CaptureSpec(workers=("other",)),)))
    assert asked.concerned(3) and not asked.concerned(5)
    silent = Windows(tmp_path, ProfileRequest(), print)
    assert not silent.concerned(3) and silent.take(REQUEST) and silent.concerned(3)
    env = {"RLPROF_REQUEST_JSON": "{}", "RLPROF_NODE_DIR": str(tmp_path)}
    assert with_request(env) == env


def test_no_supervisor_no_lead(tmp_path: Path):
    assert step_clock.lead(str(tmp_path), REQUEST) is None
    assert step_clock.lead(None, REQUEST) is None


def test_the_driver_finds_a_supervisor_that_has_taken_over(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    async def scene() -> None:
        cluster = Cluster(tmp_path, 0)
        await cluster.start()
        folder = cluster.folders["n1"]
        lead = await asyncio.to_thread(step_clock.lead, str(folder), REQUEST)
        assert lead is not None

        def one(step: int) -> float:
            began = time.monotonic()
            if lead.begin(step):
                lead.opened(step)
            lead.end(step)
            return time.monotonic() - began

        for step in (1, 2):
            await asyncio.to_thread(one, step)
        await asyncio.sleep(0.3)
        await cluster.stop()  # both ends, as when the head's supervisor is killed
        assert await asyncio.to_thread(one, 3) < 5  # a window begins with it, and nobody is there to open it
        assert await asyncio.to_thread(one, 4) < 5
        assert ClockFile(folder).read().step == 2

        again = SlowWindows(0)
        said: list[str] = []

        async def nobody(message: object) -> None:
            pass

        relay = StepRelay(folder, "n1", again, nobody, said.append)  # type: ignore[arg-type]
        await relay.listen(list)
        assert again.resumed == [(2, False)]
        for step in (5, 6):
            await asyncio.to_thread(one, step)
        await asyncio.sleep(0.3)
        assert again.begun == [5, 6] and again.ended == [5, 6] and not said
        assert ClockFile(folder).read().step == 6
        relay.close()

    asyncio.run(scene())
    said = capfd.readouterr().err
    assert said.count("does not hear the steps") == 1 and "not every window" not in said
