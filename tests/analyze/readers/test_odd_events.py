"""One odd event costs its event and no more, and what is lost is counted: against a count of the file's
events that shares no code with the readers.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.readers.json_events import count_events
from tests.analyze.readers.test_torch_reader import small
from tests.analyze.shared import kernel, write_trace, x

from rlprof_ops.analyze.columns import Trace
from rlprof_ops.analyze.readers import cache, chrome_events, inflate
from rlprof_ops.analyze.readers.torch_trace import read_torch
from rlprof_ops.analyze.run.identity import ReportFile
from rlprof_ops.analyze.run.process_summary import Unread
from rlprof_ops.analyze.run.summary import summarise_file

ODD = {
    "a list": "[1]", "lists": "[[1, [2]]]", "an object": '{"a": 1}', "true": "true", "null": "null",
    "a huge number": "1" + "0" * 30, "a number without bounds": "1e400", "an endless number": "9" * 5000,
    "half a pair": '"a\\ud800"', "nested 985 deep": "[" * 985 + "]" * 985,
    "nested 1000 deep": "[" * 1000 + "]" * 1000, "nested 5000 deep": '{"a":' * 5000 + "1" + "}" * 5000,
}  # fmt: skip
FIELDS = ("pid", "tid", "ts", "dur", "name", "ph", "cat", "args")
ARGUMENTS = ("device", "stream", "correlation", "bytes", "Collective name", "dtype", "Process Group Ranks")
SOUND = 40


@pytest.fixture(params=["scanner", "python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RLPROF_SCANNER", "1" if request.param == "scanner" else "0")
    return str(request.param)


def odd_event(category: str, field: str, value: str) -> str:
    event = json.dumps({**kernel("k", 5.0, 2.0), "cat": category, field: "@"} if field in FIELDS else
                       {**kernel("k", 5.0, 2.0), "cat": category,
                        "args": {"device": 0, "stream": 7, "correlation": 1, field: "@"}})  # fmt: skip
    return event.replace('"@"', value)


def write(path: Path, odd: str, among: int = SOUND) -> Path:
    sound = [json.dumps(event) for event in small(among // 4)]
    middle = len(sound) // 2
    path.write_text('{"traceEvents": [' + ", ".join([*sound[:middle], odd, *sound[middle:]]) + '], "x": 1}')
    return path


def check(path: Path) -> Trace:
    """Every event of the file was read or is said to be lost."""
    trace = read_torch(path)
    assert trace.events + trace.damaged == count_events(path.read_bytes())
    assert trace.truncated == ""
    return trace


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("fields", [FIELDS, ARGUMENTS], ids=["fields", "arguments"])
def test_an_odd_value_costs_its_event_and_no_more(
    tmp_path: Path, reader: str, fields: tuple[str, ...], what: str
) -> None:
    sound = read_torch(write_trace(tmp_path / "sound.json", small(SOUND // 4)))
    for category in ("kernel", "gpu_memcpy", "cpu_op", "user_annotation", "cuda_runtime", "ac2g", "Trace"):
        odd = [odd_event(category, field, ODD[what]) for field in fields]
        path = write(tmp_path / "odd.json", ", ".join(odd))
        trace = check(path)
        assert trace.damaged <= len(odd)
        assert trace.origin.pid == sound.origin.pid
        for table in ("ops", "launches", "gpu", "ranges"):
            before, after = len(getattr(sound, table)), len(getattr(trace, table))
            assert before <= after <= before + len(odd), table
        assert set(sound.tracks) <= set(trace.tracks) and set(sound.names) <= set(trace.names)
    report = ReportFile(path.name, "torch", "w", 0, "", None, None, None, None, path.stat().st_size)
    assert not [part for part in summarise_file(tmp_path, report, cache=False) if isinstance(part, Unread)]


@pytest.mark.parametrize("piece", [700, 1 << 16])
def test_where_a_batch_is_cut_makes_no_difference(
    tmp_path: Path, reader: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflate, "PIECE_BYTES", piece)
    for value in ODD.values():
        assert check(write(tmp_path / "odd.json", odd_event("kernel", "pid", value))).damaged <= 1


@pytest.mark.parametrize("odd", ["5", "null", '"text"', "[]", "[{}, {}]", "{}"])
def test_an_element_that_is_no_event_is_counted(tmp_path: Path, reader: str, odd: str) -> None:
    assert check(write(tmp_path / "odd.json", odd)).damaged == (odd != "{}")


@pytest.mark.parametrize("args", ["5", "[]", "[1, 2]", '"text"', "true"])
def test_an_operator_whose_arguments_are_no_object_is_read(tmp_path: Path, reader: str, args: str) -> None:
    """Nothing is computed from them."""
    trace = check(write(tmp_path / "odd.json", odd_event("cpu_op", "args", args)))
    assert (len(trace.ops), trace.damaged) == (SOUND // 4 + 1, 0)


INNER = [json.dumps(kernel("inside", 1.0, 1.0)), '{"a": 1}', '{"ph": "X"}']
DAMAGE = [
    ('"ph": "X"', '"ph": X'), ('"ts": 5.0', '"ts": 05.0'), ('"name": "k', '"name": k'), ('"pid"', 'pid"'),
    ('"args": {', '"args": {{'), ("}]}", "]}"),
]  # fmt: skip


@pytest.mark.parametrize("piece", [700, 1 << 22])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda pair: pair[1])
def test_the_list_does_not_end_with_a_damaged_event_that_holds_objects(
    tmp_path: Path, reader: str, damage: tuple[str, str], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflate, "PIECE_BYTES", piece)
    for inner in ("[{0}]", "[{0}, {1}]", "[{1}, {0}, {2}]", '[{0}], "m": [{2}, {2}]', "[[{0}, {2}], {0}]"):
        text = inner
        for number, event in enumerate(INNER):
            text = text.replace(f"{{{number}}}", event)
        odd = json.dumps(kernel("k", 5.0, 2.0))[:-2] + f', "l": {text}' + "}}"
        assert count_events(b'{"traceEvents": [' + odd.encode() + b"]}") == 1
        path = write(tmp_path / "odd.json", odd.replace(*damage, 1))
        trace = read_torch(path)
        assert len(trace.ops) == SOUND // 4 and trace.damaged >= 1 and trace.truncated == ""


def test_numbers_do_not_depend_on_what_stands_beside_them(tmp_path: Path, reader: str) -> None:
    """One value of another type once changed how its neighbours in the batch were read."""
    events = [kernel("k", 10.0 + n, 1.0, correlation=n) for n in range(4)]
    events[1]["args"]["correlation"] = True
    events[2]["args"]["device"] = [0]
    trace = check(write_trace(tmp_path / "t.json", events))
    assert trace.gpu.correlation.tolist() == [0, -1, 2, 3] and trace.gpu.device.tolist() == [0, 0, -1, 0]
    alone = check(
        write_trace(tmp_path / "alone.json", [{**events[2], "pid": [1]}, x("cpu_op", "a", 1.0, 1.0)])
    )
    assert alone.gpu.device.tolist() == [-1]


def test_a_cached_trace_keeps_its_count(tmp_path: Path, reader: str) -> None:
    path = write(tmp_path / "odd.json", odd_event("kernel", "ts", "[1]"))
    trace = check(path)
    assert cache.store(trace, path, "digest")
    again = cache.load(path, "digest").trace
    assert again is not None and (again.events, again.damaged) == (trace.events, 1)


def test_an_event_that_never_ends_is_given_up_where_others_stand_alone(
    tmp_path: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome_events, "_LONG_EVENT_BYTES", 4096)
    monkeypatch.setattr(inflate, "PIECE_BYTES", 8192)
    path = write(tmp_path / "odd.json", odd_event("kernel", "name", '"no end'), 4000)
    trace = read_torch(path)
    assert len(trace.ops) == 1000 and trace.damaged == 1 and trace.truncated == ""


def test_the_independent_count_is_right() -> None:
    rng = random.Random(2)
    for _ in range(300):
        events = [rng.choice([{}, {"traceEvents": [1]}, [], 1.5e3, "a\\\"]", None, {"a": [{"b": "}"}]}])
                  for _ in range(rng.randrange(6))]  # fmt: skip
        text = json.dumps(
            {"a": [1, {}], "traceEvents": events, "b": {"traceEvents": []}}, indent=rng.choice([None, 1])
        )
        assert count_events(text.encode()) == len(events)
        cut = text[: rng.randrange(len(text))]
        assert count_events(cut.encode()) is None
    assert count_events(b'{"traceEvents": [1, ]}') is None and count_events(b'{"traceEvents": [01]}') is None


def test_the_report_says_how_many_events_of_how_many_are_lost(tmp_path: Path, reader: str) -> None:
    path = write(tmp_path / "rank0_trace.json", odd_event("kernel", "ts", "[1]"))
    trace = read_torch(path)
    done = subprocess.run(
        [sys.executable, "-m", "rlprof_ops", "report", str(path)],
        capture_output=True,
        cwd=tmp_path,
        text=True,
        timeout=120,
    )
    said = " ".join((done.stdout + done.stderr).split())
    assert f"1 of {trace.events + 1} events could not be read" in said
