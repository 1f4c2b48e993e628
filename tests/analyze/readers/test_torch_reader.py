"""The torch reader: layouts, mixed types, several members, truncation and damage, against json of the same
bytes.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.shared import TORCH_FILES, kernel, launch, mark, real, write_trace, x  # noqa: E402

from rlprof_ops.analyze import readers  # noqa: E402
from rlprof_ops.analyze.columns import Trace  # noqa: E402
from rlprof_ops.analyze.readers import UnreadableReport, chrome_events, inflate, read_report  # noqa: E402
from rlprof_ops.analyze.readers.torch_trace import read_torch  # noqa: E402

BASE = 1_790_857_026_000_000_000


def small(count: int = 300) -> list[dict[str, object]]:
    events: list[dict[str, object]] = [mark("step 3", 0.5, 1000.25), mark("train", 1.0, 900.125)]
    for i in range(count):
        events.append(launch(10.0 + i, i + 1))
        events.append(kernel(f'void k<{i % 7}>("quoted\\\\", {{[]}})', 12.001 + i, 0.7, correlation=i + 1))
        events.append(
            x(
                "cpu_op",
                "aten::add",
                9.5 + i,
                1.25,
                "Spans" if i == 5 else 1,
                "" if i == 6 else 1,
                list=[{"a": {}}, {"b": [{}]}],
            )
        )
        events.append({"ph": "s", "id": i, "pid": 1, "tid": 1, "ts": 1.0, "cat": "ac2g", "name": "ac2g"})
    return events


def shape(trace: Trace) -> tuple[object, ...]:
    gpu = trace.gpu
    return (
        trace.events,
        trace.damaged,
        len(trace.ops),
        len(trace.launches),
        len(gpu),
        len(trace.ranges),
        int(gpu.start.sum()) if len(gpu) else 0,
        int(gpu.duration.sum()),
        [trace.names[n] for n in gpu.name[:10]],
    )


@pytest.mark.parametrize("indent", [None, 0, 1, 4])
@pytest.mark.parametrize("piece", [97, 1024, 1 << 20])
def test_layout_and_where_it_is_cut_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, piece: int
) -> None:
    plain = shape(read_torch(write_trace(tmp_path / "a.json", small(), None, BASE)))
    monkeypatch.setattr(inflate, "PIECE_BYTES", piece)
    trace = read_torch(write_trace(tmp_path / "b.json.gz", small(), indent, BASE))
    assert shape(trace) == plain
    assert trace.truncated == "" and trace.damaged == 0
    assert trace.gpu.start[0] == BASE + 12001 and trace.gpu.duration[0] == 700


def test_base_after_the_events(tmp_path: Path) -> None:
    text = json.dumps(
        {"traceEvents": small(3), "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE, "note": "]}"}
    )
    (tmp_path / "t.json").write_text(text)
    assert read_torch(tmp_path / "t.json").gpu.start[0] == BASE + 12001


def test_a_bare_list_of_events(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(small(3)))
    assert len(read_torch(tmp_path / "t.json").gpu) == 3


def test_several_gzip_members(tmp_path: Path) -> None:
    data = write_trace(tmp_path / "a.json", small(), None, BASE).read_bytes()
    cuts = [0, 10, 5000, 5001, len(data)]
    members = [gzip.compress(data[a:b]) for a, b in itertools.pairwise(cuts)]
    (tmp_path / "m.json.gz").write_bytes(b"".join(members) + b"\0" * 512)
    assert shape(read_torch(tmp_path / "m.json.gz")) == shape(read_torch(tmp_path / "a.json"))


@pytest.mark.parametrize("name", TORCH_FILES)
def test_real_traces_agree_with_json(name: str) -> None:
    path = real(f"torch/{name}.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    trace = read_torch(path)
    kinds = {"kernel", "gpu_memcpy", "gpu_memset"}
    assert trace.events == len(events) and trace.damaged == 0 and not trace.truncated
    assert len(trace.gpu) == sum(e.get("cat") in kinds for e in events)
    assert len(trace.ops) == sum(e.get("cat") == "cpu_op" for e in events)
    micro = sum(e["dur"] for e in events if e.get("cat") in kinds)
    assert abs(int(trace.gpu.duration.sum()) / 1000 - micro) < 0.01


@pytest.mark.parametrize("packed", [False, True])
def test_cut_anywhere_reads_what_is_there(tmp_path: Path, packed: bool) -> None:
    whole = write_trace(tmp_path / ("a.json.gz" if packed else "a.json"), small(60), None, BASE).read_bytes()
    full = shape(read_torch(tmp_path / ("a.json.gz" if packed else "a.json")))
    path = tmp_path / ("c.json.gz" if packed else "c.json")
    rng = random.Random(5)
    for cut in [*range(40), *rng.sample(range(40, len(whole)), 60)]:
        path.write_bytes(whole[:cut])
        try:
            trace = read_report(path, cache=False)
        except UnreadableReport as error:
            assert str(path) in str(error)
            continue
        assert trace.truncated or shape(trace) == full
        assert trace.events <= int(str(full[0]))


def test_bit_flips_never_crash(tmp_path: Path) -> None:
    plain = write_trace(tmp_path / "a.json", small(40), None, BASE).read_bytes()
    packed = gzip.compress(plain)
    rng = random.Random(7)
    for number in range(150):
        source = bytearray(packed if number % 2 else plain)
        for _ in range(rng.randint(1, 4)):
            source[rng.randrange(len(source))] ^= 1 << rng.randrange(8)
        path = tmp_path / "f.json"
        path.write_bytes(bytes(source))
        try:
            assert read_report(path, cache=False).events <= 40 * 4 + 2
        except UnreadableReport as error:
            assert str(path) in str(error)


WRONG = [
    '"ts": "soon"',
    '"ts": null',
    '"ts": {}',
    '"dur": []',
    '"dur": -5',
    '"name": {"a": 1}',
    '"pid": [1]',
    '"tid": {}',
    '"cat": 7',
    '"ph": null',
    '"args": [1, 2]',
    '"args": "x"',
    '"args": {"stream": [], "correlation": {}, "device": "gpu"}',
    '"ts": 1e999',
    '"args": {"correlation": 123456789012345678901234567890, "bytes": -1e300, "Group size": "8"}',
    '"ts": 99999999999999999999999999',
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_types_cost_only_their_event(tmp_path: Path, wrong: str) -> None:
    key = wrong.split(":")[0]
    fields = {
        '"ph"': '"X"',
        '"cat"': '"kernel"',
        '"name"': '"k"',
        '"pid"': "0",
        '"tid"': "7",
        '"ts"': "5",
        '"dur"': "1",
    }
    fields.pop(key, None)
    bad = "{" + ", ".join([*(f"{k}: {v}" for k, v in fields.items()), wrong]) + "}"
    good = [json.dumps(kernel("k", 10.0 + i, 1.0)) for i in range(5)]
    path = tmp_path / "w.json"
    path.write_text('{"traceEvents": [' + ", ".join([*good, bad, *good]) + "]}")
    trace = read_torch(path)
    assert 10 <= len(trace.gpu) <= 11
    assert int((trace.gpu.duration == 1000).sum()) >= 10


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"not json at all", "no traceEvents"),
        (b"\x1f\x8b\x08\x00garbage", "gzip stream"),
        (b'{"traceEvents": []}', "list of events is empty"),
        (b"[" * 200_000, "no traceEvents"),
        (b'{"traceEvents": [' + b'{"a":' * 200_000, "damaged"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableReport, match=said) as error:
        read_report(path, cache=False)
    assert str(path) in str(error.value)


def test_one_event_without_end_stays_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome_events, "MAX_EVENT_BYTES", 1 << 20)
    monkeypatch.setattr(inflate, "PIECE_BYTES", 1 << 18)
    good = json.dumps(kernel("k", 10.0, 1.0))
    path = tmp_path / "long.json.gz"
    text = '{"traceEvents": [' + good + ', {"name": "' + "a" * (8 << 20) + '"}, ' + good + "]}"
    path.write_bytes(gzip.compress(text.encode(), 1))
    trace = read_torch(path)
    assert len(trace.gpu) == 2 and trace.damaged >= 1


def test_cache_is_used_and_thrown_away_when_the_report_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_trace(tmp_path / "t.json.gz", small(), None, BASE)
    read_report(path)
    assert [file.name for file in tmp_path.iterdir()] == ["t.json.gz"]  # not worth a cache
    monkeypatch.setattr(readers, "SMALL_BYTES", 0)
    read_report(path)
    assert [file.name for file in tmp_path.iterdir()] == ["t.json.gz"]  # of somebody else's folder
    (tmp_path / "run.json").write_text('{"job": "4711"}')
    first = read_report(path)
    assert (tmp_path / ".t.json.gz.columns.parquet").is_file()
    again = read_report(path)
    assert shape(again) == shape(first) and again.names == first.names and again.origin == first.origin
    write_trace(path, small(10), None, BASE)
    assert len(read_report(path).gpu) == 10
    (tmp_path / ".t.json.gz.columns.parquet").write_bytes(b"PAR1 damaged")
    assert len(read_report(path).gpu) == 10


def test_a_pid_that_is_no_number_or_text_costs_its_event_nothing(tmp_path: Path) -> None:
    events = [*small(10), x("cpu_op", "aten::odd", 50.0, 1.0, ["a", "b", "c"], {"thread": 1})]
    trace = read_torch(write_trace(tmp_path / "odd.pt.trace.json", events))
    assert ("['a', 'b', 'c']", "{'thread': 1}") in trace.tracks
    assert len(trace.ops) == 11


@pytest.mark.parametrize("bad", [5, 39])
def test_a_wrong_type_costs_its_event_where_times_are_read_from_their_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    monkeypatch.setattr(inflate, "PIECE_BYTES", 2048)
    events = [x("cpu_op", "aten::add", 1_682_725_898_926_684 + i, 1.0) for i in range(60)]
    events[bad]["ph"] = 5
    trace = read_torch(write_trace(tmp_path / "t.json", events))
    assert (len(trace.ops), trace.damaged) == (59, 1)


def test_categories_of_torch_until_1_10(tmp_path: Path) -> None:
    """Kineto wrote `Kernel`, `Memcpy`, `Memset`, `Runtime` and `Operator` then; they were read as none."""
    words = {"kernel": "Kernel", "cuda_runtime": "Runtime", "cpu_op": "Operator"}
    now = [
        mark("step 1", 0, 100),
        x("cpu_op", "aten::mm", 1, 5),
        launch(2, 1),
        kernel("gemm", 10, 30, correlation=1),
    ]
    then = [event | {"cat": words.get(event["cat"], event["cat"])} for event in now]
    found = [read_report(write_trace(tmp_path / f"{i}.json", events)) for i, events in enumerate((now, then))]
    assert [(len(t.gpu), len(t.launches), len(t.ops)) for t in found] == [(1, 1, 1)] * 2
    assert [t.gpu.correlation.tolist() for t in found] == [[1], [1]]
