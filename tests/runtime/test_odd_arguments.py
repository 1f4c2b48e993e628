"""What training code hands to a profiler without a thought: what runs where nothing is asked runs in a job
that is watched."""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import socket
import threading
import types

import pytest

from rlprof_ops.runtime import marks, profiler
from rlprof_ops.runtime.clock_file import SOCKET, ClockFile
from rlprof_ops.runtime.null_profiler import NullProfiler
from rlprof_ops.runtime.plain_values import plain_name, whole_number

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


class Phase(enum.Enum):
    TRAIN = "train"


class TextPhase(str, enum.Enum):
    TRAIN = "train"


class Mute:
    def __str__(self):
        raise ValueError("no text")

    __repr__ = __index__ = __int__ = __bool__ = __str__


NUMBERS = {
    "numpy": numpy.int64(3),
    "numpy float": numpy.float32(3),
    "numpy without dimensions": numpy.array(3),
    "tensor": torch.tensor(3),
    "float tensor": torch.tensor(3.0),
    "float": 3.0,
    "text": "3",
}
ODD = {
    **NUMBERS,
    "nothing": None,
    "bool": True,
    "not a number": float("nan"),
    "endless": float("inf"),
    "half": 2.5,
    "huge": 10**30,
    "too long for text": 10**5000,
    "vector": torch.ones(2),
    "bytes": b"train\xff",
    "surrogate": "train \udcff",
    "zero byte": "train\0",
    "long": "train/" * 1000,
    "list": [3],
    "member": Phase.TRAIN,
    "member of texts": TextPhase.TRAIN,
    "mute": Mute(),
}
CAPTURES = {
    "steps": {"steps": "1:5"},
    "phases": {"steps": "1:", "each": "phase"},
    "inside a step": {"steps": "1:5", "at": "train+1ms", "for": "10ms"},
    "torch": {"backend": "torch", "steps": "1:5"},
}


def use(prof, odd) -> list[object]:
    """Every call of training code, with `odd` wherever it gives something."""
    done: list[object] = []
    with prof.step(odd), prof.range(odd):
        done.append("step")
    prof.start_step(odd)
    prof.start_step(odd)
    with contextlib.suppress(KeyError), prof.range(odd):
        raise KeyError
    prof.stop_step(odd)
    prof.start_step(odd)
    prof.abort_step()
    done.append(prof.annotate(odd)(lambda x: x + 1)(1))
    done.append(profiler.annotate(odd)(lambda x: x + 2)(1))
    profiler.runtime_env(odd, odd)
    prof.metrics()
    return done


@pytest.fixture
def supervisor(tmp_path, monkeypatch):
    """A node's supervisor that hears what the process that leads tells; what it heard."""
    heard: list[dict[str, object]] = []
    node = tmp_path / "node"
    node.mkdir()
    ClockFile(node, write=True)
    monkeypatch.chdir(node)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(SOCKET)
    server.listen()

    def serve() -> None:
        with server.accept()[0] as link, link.makefile("rb") as lines:
            for line in lines:
                heard.append(json.loads(line))
                if heard[-1].get("wait"):
                    link.sendall(json.dumps({"go": heard[-1]["begin"]}).encode() + b"\n")

    threading.Thread(target=serve, daemon=True).start()
    monkeypatch.setenv("RLPROF_LEADS", "1")
    yield heard
    server.close()


@pytest.mark.parametrize("name", ODD)
def test_what_runs_where_nothing_is_asked(name):
    assert use(NullProfiler(), ODD[name]) == ["step", 2, 3]


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", ODD)
def test_runs_in_a_window(name, capture, recorder, asked, monkeypatch):
    monkeypatch.setenv("RLPROF_METRICS", "1")
    if "backend" in CAPTURES[capture]:
        asked(**CAPTURES[capture])
        prof = profiler.from_env("policy_worker", 0)
    else:
        prof, _ = recorder(**CAPTURES[capture])

    assert prof.active and use(prof, ODD[name]) == ["step", 2, 3]
    prof.close()


@pytest.mark.parametrize("name", ODD)
def test_runs_in_the_process_that_leads(name, supervisor, recorder, monkeypatch):
    monkeypatch.setenv("RLPROF_RECORD", "1")
    monkeypatch.setenv("RLPROF_TRACKERS", "1")
    prof, _ = recorder(steps="1:5")

    assert prof.leads and use(prof, ODD[name]) == ["step", 2, 3]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_step_of_another_library_is_that_step(name, supervisor, recorder, events, monkeypatch):
    monkeypatch.setenv("RLPROF_RECORD", "1")
    prof, _ = recorder(steps="3")
    with prof.step(NUMBERS[name]):
        pass
    prof.close()

    assert [event["steps"] for event in events("closed")] == [[3, 4]]
    assert [event["step"] for event in events("step")] == [3]
    told = [message["end"] for message in supervisor if "end" in message]
    assert told in ([3], [])  # what it hears, it hears from another thread
    (now,) = (prof.place.root / marks.FOLDER).glob(f"*{marks.SUFFIX}")
    assert marks.unpack(now.read_bytes()).step == -3


def test_a_step_that_changes_while_it_runs_ends_as_it_began(recorder, events):
    prof, _ = recorder(steps="3")
    step = torch.tensor(3)
    with prof.step(step):
        step += 1

    assert [event["partial"] for event in events("closed")] == [False]


def test_steps_without_a_number_are_counted_and_said_once(recorder, events, capsys):
    prof, _ = recorder(steps="3:5")
    for step in (2, None, float("nan"), 5):
        with prof.step(step):
            pass

    assert [event["seen"] for event in events("closed")] == [[3, 4]]
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "a step is told" in line]
    assert said.startswith("[rlprof] a step is told as NoneType that is no whole number, or too large a one")
    assert said.endswith(": steps are counted on from 2")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_rank_of_another_library_is_that_rank(name, asked, events):
    asked(backend="memory", ranks=[3])
    prof = profiler.from_env(worker=TextPhase.TRAIN, rank=NUMBERS[name], world_size=NUMBERS[name])

    assert profiler.from_env(worker="train", rank=3, world_size=3) is prof
    (registered,) = events("registered")
    assert (registered["worker"], registered["rank"], registered["world_size"]) == ("train", 3, 3)
    assert profiler.runtime_env(TextPhase.TRAIN, NUMBERS[name]) == {"rlprof": {"worker": "train", "rank": 3}}
    prof.close()


@pytest.mark.parametrize("what", [int, property(int), 3])
def test_what_cannot_be_annotated_is_refused_where_nothing_is_asked_too(what, recorder):
    for prof in (NullProfiler(), recorder()[0]):
        with pytest.raises(TypeError, match="annotate is for functions and methods, not for "):
            prof.annotate("x")(what)


@functools.cache
def cached(x):
    return x + 1


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice = torch.library.custom_op("rlprof_tests::twice", twice, mutates_args=())


class Scorer:
    weight = 3

    def __call__(self, x):
        return x + 1

    def __getitem__(self, grid):
        return self


@pytest.mark.parametrize("what", [cached, Scorer(), torch.nn.Identity(), twice])
def test_what_is_more_than_a_function_is_left_as_it_is_and_said_once(what, recorder, capsys):
    """A function around it would lack `cache_clear`, `weight`, `parameters`, and what gets subscripts."""
    prof, _ = recorder(steps="1:5")

    assert prof.annotate("reward")(what) is what and profiler.annotate("reward")(what) is what
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "annotate" in line]
    kind = f"{type(what).__module__}.{type(what).__qualname__}"
    assert said == (
        f"[rlprof] annotate leaves a {kind} as it is, without ranges (reward): annotate the function in it,"
        " or put `with prof.range(...)` where it is called"
    )


@pytest.mark.parametrize("what", [staticmethod(int), types.MethodType(int, "3"), staticmethod(cached)])
def test_a_method_of_what_is_no_function_is_as_it_would_be(what, recorder):
    prof, _ = recorder(steps="1:5")

    found = prof.annotate("x")(what)

    assert type(found) is type(what) and found.__func__ is what.__func__


def test_plain_values():
    assert [whole_number(value) for value in NUMBERS.values()] == [3] * len(NUMBERS)
    assert whole_number(True) == 1 and type(whole_number(True)) is int
    for odd in (None, float("nan"), float("inf"), 2.5, 1 << 63, -(1 << 63), "x", b"3", [3], Mute()):
        assert whole_number(odd) is None
    names = {b"a\xff": "a\ufffd", Phase.TRAIN: "Phase.TRAIN", TextPhase.TRAIN: "train", None: "None", 3: "3"}
    assert {name: plain_name(name) for name in names} == names
    assert plain_name(Mute()) == "Mute" and type(plain_name(TextPhase.TRAIN)) is str
