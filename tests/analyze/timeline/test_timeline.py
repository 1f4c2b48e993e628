"""The timeline files, read back by independent decoders: the perfetto package's protobuf classes, zipfile,
the manifest's rules.
"""

from __future__ import annotations

import gzip
import json
import random
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
pb = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs the perfetto package"
)
pytest.importorskip("msgspec")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tests.analyze.as_data import answer_of  # noqa: E402
from tests.analyze.fake_run import BASE_NS, make_run  # noqa: E402
from tests.analyze.shared import kernel, mark, write_trace  # noqa: E402

from rlprof_ops.analyze.timeline import archive, packets, request_rows  # noqa: E402
from rlprof_ops.analyze.timeline.make import LEGACY, OVERVIEW, RANKS, make  # noqa: E402
from rlprof_ops.runtime.request_log import EngineRequest  # noqa: E402


def decode(
    data: bytes,
) -> tuple[dict[int, Any], dict[int, list[tuple[int, int, str]]], dict[int, list[tuple[int, int]]]]:
    """Tracks, slices (start, end, name) by track and counters by track; fails on what does not balance."""
    trace = pb.Trace.FromString(data)
    tracks, names = {}, {}
    slices: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    open_: dict[int, list[tuple[int, str]]] = defaultdict(list)
    counters: dict[int, list[tuple[int, int]]] = defaultdict(list)
    last = 0
    for number, packet in enumerate(trace.packet):
        assert packet.trusted_packet_sequence_id == packets.SEQUENCE
        if number == 0:
            assert packet.sequence_flags == pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        for entry in packet.interned_data.event_names:
            names[entry.iid] = entry.name
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert packet.sequence_flags == pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        assert event.track_uuid in tracks
        if event.type == pb.TrackEvent.TYPE_COUNTER:
            counters[event.track_uuid].append((packet.timestamp, event.counter_value))
            continue
        assert packet.timestamp >= last, "slices come in order of time"
        last = packet.timestamp
        if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            open_[event.track_uuid].append((packet.timestamp, names[event.name_iid]))
        else:
            start, name = open_[event.track_uuid].pop()
            assert packet.timestamp > start
            slices[event.track_uuid].append((start, packet.timestamp, name))
    assert not any(open_.values()), "every slice ends"
    return tracks, slices, counters


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 10**6), st.integers(0, 5)), max_size=30),
    st.integers(0, 2**62),
)
def test_packets_come_back_as_they_went_in(items: list[tuple[int, int, int]], base: int) -> None:
    cursor: dict[int, int] = defaultdict(lambda: base)
    rows = []
    for track, length, name in items:
        rows.append((cursor[track], cursor[track] + length, track + 10, name + 1))
        cursor[track] += length
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(4)]
    head = packets.first_packet([f"n{i}" for i in range(6)]) + b"".join(
        packets.track(10 + t, f"t{t}") for t in range(4)
    )
    _, slices, _ = decode(head + packets.slices(*columns).tobytes())
    got = sorted((start, end, track, name) for track, group in slices.items() for start, end, name in group)
    assert got == sorted((start, end, track, f"n{name - 1}") for start, end, track, name in rows)


def test_overview_of_a_run(tmp_path: Path) -> None:
    make(make_run(tmp_path, ranks=3, offsets_ns={"n1": 5_000_000}), jobs=1, cache=False)
    data = (tmp_path / OVERVIEW).read_bytes()
    tracks, slices, counters = decode(data)
    ranks = sorted((t for t in tracks.values() if t.parent_uuid == 1), key=lambda t: t.sibling_order_rank)
    assert [t.name for t in ranks] == [
        "n0/generation_worker/0",
        "n0/policy_worker/0",
        "n1/policy_worker/1",
        "n0/policy_worker/2",
    ]
    assert len({t.uuid for t in tracks.values()}) == len(tracks)
    children = {t.name: [c for c in tracks.values() if c.parent_uuid == t.uuid] for t in ranks}
    assert {c.name for c in children["n1/policy_worker/1"]} == {
        "steps",
        "phases",
        "collectives",
        "longest kernels",
        "GPU busy",
    }
    starts = []
    for rank in ("n0/policy_worker/0", "n1/policy_worker/1"):
        by_name = {c.name: c.uuid for c in children[rank]}
        assert [name for *_, name in slices[by_name["steps"]]] == ["step 3", "step 4", "step 5"]
        assert [name for *_, name in slices[by_name["phases"]]] == ["ref_logprob", "train", "weight_sync"] * 3
        starts.append(slices[by_name["steps"]][0][0])
        assert all(0 <= value <= 1000 for _, value in counters[by_name["GPU busy"]])
    assert abs(starts[0] - starts[1]) < 10_000  # one clock, though the hosts' are 5 ms apart
    assert abs(starts[0] - (BASE_NS + 1_000_000_000)) < 10_000


def write_requests(run: Path, node: str, worker: str, rank: int, rows: list[EngineRequest]) -> None:
    path = run / "nodes" / node / "requests" / f"{rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    first = {"event": "requests", "worker": worker, "rank": rank, "pid": 7, "host": node}
    path.write_text("".join(json.dumps(line) + "\n" for line in [first, *map(list, rows)]))


def test_requests_stand_below_the_rank_that_generates(tmp_path: Path) -> None:
    """Those in flight while something is captured; a replica that is not captured has a track too."""
    make_run(tmp_path, ranks=2, offsets_ns={"n1": 5_000_000})
    begin, ms = BASE_NS + 1_000_000_000, 1_000_000

    def request(name: str, *times: int | None, turn: int = 1) -> EngineRequest:
        came, scheduled, first, done = (None if t is None else begin + t * ms for t in times)
        assert came is not None and done is not None
        return EngineRequest(name, 5, 40, came, came, scheduled, first, done, 0, "stop", 1, turn)

    told = [request("a", 2, 3, 5, 40), request("b", 2, 2, 4, 20), request("<c>", 25, 26, 27, 39, turn=2)]
    long_before = request("before", -9000, -9000, -9000, -8000)
    write_requests(tmp_path, "n0", "generation_worker", 0, [*told, long_before])
    write_requests(tmp_path, "n1", "generation_worker", 1, [request("d", 1, None, None, 9)])
    make(tmp_path, jobs=1, cache=False)
    tracks, slices, _ = decode((tmp_path / OVERVIEW).read_bytes())
    ranks = {t.name: t.uuid for t in tracks.values() if t.parent_uuid == 1}
    found = {}
    for rank in ("n0/generation_worker/0", "n1/generation_worker/1"):
        mine = [t for t in tracks.values() if t.parent_uuid == ranks[rank] and t.name.startswith("requests")]
        for track in mine:
            found[rank, track.name] = [
                ((a - begin) // ms, (b - begin) // ms, n) for a, b, n in slices[track.uuid]
            ]
    one, other = "n0/generation_worker/0", "n1/generation_worker/1"
    zero = found[one, "requests"][0][0] - 2  # clocks are put on one of the hosts'
    assert abs(zero) <= 5
    drawn = {
        track: [(a - zero, b - zero, n) for a, b, n in of]
        for (rank, track), of in found.items()
        if rank == one
    }
    assert drawn == {
        "requests": [(2, 3, "queued"), (3, 5, "prefill"), (5, 40, "a: 40 tokens, stop")],
        "requests (2)": [
            (2, 4, "prefill"), (4, 20, "b: 40 tokens, stop"), (25, 26, "queued"), (26, 27, "prefill"),
            (27, 39, "<c>: 40 tokens, stop, turn 2"),
        ],
    }  # fmt: skip
    assert [name for *_, name in found[other, "requests"]] == ["d: 40 tokens, stop"]


def test_of_too_many_requests_the_longest_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_rows, "MOST_REQUESTS", 10)
    make_run(tmp_path, ranks=1)
    rows = [
        EngineRequest(str(n), 1, n, BASE_NS, None, None, None, BASE_NS + n * 10**8, None, "stop")
        for n in range(20, 50)
    ]
    write_requests(tmp_path, "n0", "generation_worker", 0, rows)
    make(tmp_path, jobs=1, cache=False)
    _, slices, _ = decode((tmp_path / OVERVIEW).read_bytes())
    found = {name for of in slices.values() for *_, name in of if name.endswith("stop")}
    assert found == {f"{n}: {n} tokens, stop" for n in range(40, 50)}


def manifest_of(path: Path) -> tuple[dict[str, Any], zipfile.ZipFile]:
    archive_file = zipfile.ZipFile(path)
    assert archive_file.testzip() is None
    found = [
        name
        for name in archive_file.namelist()
        if archive_file.read(name)[:64].lstrip().startswith(b'{"perfetto_manifest"')
    ]
    assert found == ["perfetto_manifest.json"]
    manifest = json.loads(archive_file.read(found[0]))
    check_rules(manifest["perfetto_manifest"], archive_file)
    return manifest["perfetto_manifest"], archive_file


def check_rules(manifest: dict[str, Any], file: zipfile.ZipFile) -> None:
    """google/perfetto docs/reference/perfetto-manifest.md, version 1."""
    assert manifest["version"] == 1
    paths = [entry["path"] for entry in manifest["files"]]
    assert set(paths) | {"perfetto_manifest.json"} == set(file.namelist()) and len(set(paths)) == len(paths)
    for entry in manifest["files"]:
        assert entry["machine"]["name"] and "machines" not in entry
        assert not entry["path"].startswith(".") and not entry["path"].endswith((".gz", ".zip", ".tar"))
        if "clocks" in entry:
            assert entry["clocks"]["sync_to"]["file"] in paths and isinstance(
                entry["clocks"]["offset_ns"], int
            )
            assert -(2**63) < entry["clocks"]["offset_ns"] < 2**63 and "clock" not in entry["clocks"]
    for key, value in manifest["attributes"].items():
        assert key and isinstance(value, (str, int))


def test_archive_holds_every_trace_byte_for_byte_on_one_clock(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=3, offsets_ns={"n1": 5_000_000})
    make(run, jobs=1)
    manifest, file = manifest_of(tmp_path / RANKS)
    assert [e["machine"]["name"] for e in manifest["files"]] == [
        "n0/generation_worker/0",
        "n0/policy_worker/0",
        "n1/policy_worker/1",
        "n0/policy_worker/2",
    ]
    sources = {f"_{p.parent.parent.name}_{p.parent.name}_": p for p in run.rglob("*.json.gz")}
    for entry in manifest["files"]:
        source = next(p for key, p in sources.items() if key in entry["path"])
        assert file.read(entry["path"]) == gzip.decompress(source.read_bytes())
    # the same moment of two hosts: n1's clock is 5 ms ahead, and its base says so, so its file moves by
    # nothing
    assert abs(manifest["files"][2]["clocks"]["offset_ns"]) < 10_000
    assert manifest["attributes"]["rlprof.job"] == "4711"


def one_group(folder: Path) -> None:
    """Both hosts, one group; a first window on n0 alone, whose gloo collectives nothing numbers. n1's clock
    is 3 ms ahead.
    """
    for rank, step, late_us in ((0, 1, 0), (0, 11, 0), (1, 11, 3000)):
        rng = random.Random(step)
        begin = step * 10_000_000 + late_us
        events = [mark(f"step {step}", begin, 2_000_000), mark("train", begin + 100_000, 900_000)]
        for i in range(6):
            events.append(mark("gloo:all_reduce", begin + 100_000 * (i + 2) + rng.randrange(20_000), 5000))
        name = f"policy_worker_rank{rank}_step{step}-{step}_n{rank}_{1000 + rank}.pt.trace.json.gz"
        write_trace(folder / name, events, base_ns=BASE_NS, host_name=f"n{rank}")


def two_engines(folder: Path) -> None:
    """Two vLLM engines, each a world of its own with a group "1" of ranks 0 and 1; n1's works 3 s later."""
    for engine in (0, 1):
        events = [mark("step 1", 0, 9_000_000), mark("generation", 10, 8_000_000)]
        said = {"Collective name": "allreduce", "Group size": 2, "Process Group Name": "1"}
        for i in range(10):
            start = 100_000 * (i + 1) + 3_000_000 * engine
            told = said | {"Process Group Ranks": "[0, 1]", "Seq": i}
            events.append(kernel("ncclDevKernel_AllReduce", start, 500, 20, 0, i + 1, **told))
        name = f"rollout_tp0_rank{engine}_step1-1_n{engine}_{100 + engine}.pt.trace.json.gz"
        world = {"backend": "nccl", "rank": 0, "world_size": 2}
        write_trace(folder / name, events, base_ns=BASE_NS, host_name=f"n{engine}", distributedInfo=world)


@pytest.mark.parametrize(("write", "offset_ns"), [(one_group, -3_000_000), (two_engines, 0)])
def test_hosts_are_aligned_as_in_the_report(
    tmp_path: Path, write: Callable[[Path], None], offset_ns: int
) -> None:
    write(tmp_path)
    made = make(tmp_path, tmp_path, jobs=1, cache=False)
    clocks = answer_of(tmp_path, jobs=1, cache=False)["clocks"]
    manifest, _ = manifest_of(tmp_path / RANKS)
    assert manifest["files"][-1]["clocks"]["offset_ns"] == clocks["hosts"][1]["offset_ns"] == offset_ns
    assert made.residual_ns == clocks["residual_ns"] == (0 if offset_ns else None)


def test_processes_that_share_worker_and_rank_are_tracks_of_their_own(tmp_path: Path) -> None:
    """Two engines, each rank 0 of the same worker; a replica's requests stand below the one that has its
    pid.
    """
    for pid in (7, 8):
        events = [mark("step 1", 1000 * pid, 9000), mark("generation", 1000 * pid, 8000)]
        name = f"rollout_rank0_step1-1_n0_{pid}.pt.trace.json.gz"
        write_trace(tmp_path / name, events, base_ns=BASE_NS, host_name="n0")
    write_requests(
        tmp_path,
        "n0",
        "rollout",
        0,
        [EngineRequest("a", 5, 40, BASE_NS, None, None, None, BASE_NS + 10**8, 0, "stop")],
    )
    made = make(tmp_path, tmp_path, jobs=1, cache=False)
    tracks, slices, _ = decode((tmp_path / OVERVIEW).read_bytes())
    ranks = {t.name: t.uuid for t in tracks.values() if t.parent_uuid == 1}
    assert made.ranks == len(ranks) == 2
    drawn = {
        name: {t.name: slices[t.uuid] for t in tracks.values() if t.parent_uuid == uuid}
        for name, uuid in ranks.items()
    }
    for pid in (7, 8):
        begin = BASE_NS + pid * 1_000_000
        phases = drawn[f"n0/rollout/0 (pid {pid})"]["phases"]
        assert phases == [(begin, begin + 8_000_000, "generation")]
    assert ["requests" in rows for rows in drawn.values()] == [True, False]
    machines = [entry["machine"]["name"] for entry in manifest_of(tmp_path / RANKS)[0]["files"]]
    assert sorted(machines) == sorted(ranks)


def test_bytes_are_moved_not_packed_again(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.json.gz", [kernel("k", float(i), 0.5) for i in range(2000)])
    archive.write_archive(tmp_path / "a.zip", [archive.ArchiveMember("t.json", "n/w/0", 0, trace)], {})
    body = trace.read_bytes()[10:-8]
    assert body in (tmp_path / "a.zip").read_bytes()


@pytest.mark.parametrize("kind", ["plain", "members", "named", "truncated", "padded"])
def test_what_cannot_be_moved_is_packed_again(tmp_path: Path, kind: str) -> None:
    events = [kernel("k", float(i), 0.5) for i in range(500)]
    plain = write_trace(tmp_path / "p.json", events).read_bytes()
    path = tmp_path / "t.json.gz"
    if kind == "plain":
        path.write_bytes(plain)
    elif kind == "members":
        path.write_bytes(gzip.compress(plain[:999]) + gzip.compress(plain[999:]))
    elif kind == "named":
        with open(path, "wb") as raw, gzip.GzipFile("a name.json", "wb", fileobj=raw) as packed:
            packed.write(plain)
    elif kind == "truncated":
        path.write_bytes(gzip.compress(plain)[:-300])
    else:
        path.write_bytes(gzip.compress(plain) + b"\0" * 64)
    assert (
        archive.write_archive(tmp_path / "a.zip", [archive.ArchiveMember("t.json", "n/w/0", 0, path)], {})
        == []
    )
    _, file = manifest_of(tmp_path / "a.zip")
    got = file.read("t.json")
    assert got == plain if kind != "truncated" else plain.startswith(got) and len(got) > 100


def test_legacy_json_keeps_processes_apart(tmp_path: Path) -> None:
    make(make_run(tmp_path, ranks=2), jobs=1, with_legacy=True, cache=False)
    events = json.loads(gzip.decompress((tmp_path / LEGACY).read_bytes()))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    assert len(set(names.values())) == len(names) == 6  # a CPU and a GPU process for each of three files
    used = {e["pid"] for e in events if e["ph"] == "X"}
    assert used == set(names)
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert {names[e["pid"]].split("/")[1] for e in kernels} == {"generation_worker", "policy_worker"}
    assert all(-1 < e["ts"] < 400_000 for e in kernels)


def test_overview_stays_small_with_many_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlprof_ops.analyze.timeline import overview

    monkeypatch.setattr(overview, "MAX_SLICES", 4000)
    make(make_run(tmp_path, ranks=20, kernels=200), jobs=1, cache=False)
    _, slices, _ = decode((tmp_path / OVERVIEW).read_bytes())
    assert sum(map(len, slices.values())) < 4000 + 21 * 3


@pytest.mark.parametrize("where", ["before", "behind", "nowhere"])
def test_base_time_is_found_wherever_it_stands(tmp_path: Path, where: str) -> None:
    events = json.dumps([kernel("k", float(i), 0.5, x="y" * 100) for i in range(6000)])
    before = f'"baseTimeNanoseconds": {BASE_NS}, ' if where == "before" else ""
    behind = f', "baseTimeNanoseconds": {BASE_NS}' if where == "behind" else ""
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(f'{{{before}"traceEvents": {events}{behind}}}'.encode()))
    assert archive.base_ns(path) == (0 if where == "nowhere" else BASE_NS)
