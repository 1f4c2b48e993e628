"""Verdicts on dumps that real ranks wrote while they hung, and on what the reader must refuse."""

from __future__ import annotations

import copy
import functools
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlprof_ops.analyze.hang.flight_dumps import read_dump, read_folder
from rlprof_ops.analyze.hang.hang_text import explain
from rlprof_ops.analyze.hang.plain_pickle import plain_pickle
from rlprof_ops.cli import cli

torch = pytest.importorskip("torch")
from tests.analyze.hang import ranks as hung  # noqa: E402 - imports torch
from tests.needs import need  # noqa: E402

HERE = Path(__file__).parent


def needs_fuse(scenario: str) -> None:
    if scenario == "dead_mount":
        need("fuse")


def verdict(folder: Path) -> dict[str, Any]:
    _, answer = explain(folder)
    assert not answer["unread"] and len(answer["verdicts"]) == 1, answer
    found: dict[str, Any] = answer["verdicts"][0]
    return found


FIRST_SENTENCE = {
    "sleeps": "Rank 1 is missing: ranks 0, 2-7 wait in all_reduce #4 of default_pg",
    "leaves_early": "Rank 2 is missing: ranks 0, 1, 3 wait in all_reduce #4 of default_pg",
    "leaves_no_dump": "Rank 1 left no dump and may be missing: rank 0 waits in all_reduce #4 of default_pg",
    "calls_another": "Collectives do not match in their operation: rank 1 calls barrier #4 of default_pg",
    "shape": "Collectives do not match in their shape: rank 0 calls broadcast #4 of default_pg (Float [4, 5])"
    " where rank 1 calls broadcast #4 of default_pg (Float [4, 6])",
    "dtype": "Collectives do not match in their dtype: rank 0 calls broadcast #4 of default_pg (Float [4])"
    " where rank 1 calls broadcast #4 of default_pg (Double [4])",
    "opposite_order": "Ranks use their groups in different orders: rank 0 waits in all_reduce #2 of tp",
    "opposite_at_once": "Ranks seem to use their groups in different orders: rank 0 waits in all_reduce #1",
    "two_groups": "Rank 1 is missing: rank 0 waits in all_reduce #2 of pair",
    "stopped": "Rank 3 left no dump and may be missing: ranks 0-2 wait in all_reduce #4 of default_pg",
    # gloo has ended the collective of those who were connected to it.
    "killed": "Rank 2 left no dump and may be missing: rank 0 waits in all_reduce #4 of default_pg",
    **dict.fromkeys(hung.HELD, "Rank 1 is missing: rank 0 waits in all_reduce #4 of default_pg"),
    "fine": "No collective is open in these dumps, and no rank is behind",
}


@pytest.mark.parametrize("scenario", hung.SCENARIOS)
def test_the_first_sentence_is_the_verdict(dumps: Path, scenario: str) -> None:
    needs_fuse(scenario)
    lines, _ = explain(dumps / scenario)
    assert lines[0].startswith(FIRST_SENTENCE[scenario]), "\n".join(lines)


@pytest.mark.parametrize("scenario", ["sleeps", "leaves_early", "calls_another", "shape", "opposite_order"])
def test_json_dumps_say_the_same_without_stacks(dumps: Path, scenario: str) -> None:
    one, other = verdict(dumps / scenario), verdict(dumps / f"{scenario}.json")
    assert (other["kind"], other["text"]) == (one["kind"], one["text"])
    assert one["stacks"] and not other["stacks"]
    assert any("no stacks" in note for note in other["notes"])


def test_a_missing_rank_is_told_with_the_last_thing_it_did(dumps: Path) -> None:
    found = verdict(dumps / "sleeps")
    (missing,) = found["missing"]
    assert missing["rank"] == 1 and missing["last"]["sequence"] == 3 and not missing["last"]["open"]
    assert re.fullmatch(rf"steps {HERE}/ranks.py:\d+", missing["last"]["at"])
    assert found["waiting"] == [0, 2, 3, 4, 5, 6, 7] and found["sure"]
    lines, _ = explain(dumps / "sleeps")
    rows = [line.split() for line in lines if re.match(r"[\d, -]+ +#\d", line)]
    assert [word for row in rows for word in row if word in ("in", "ended")] == ["in", "ended"], lines
    assert [ranks["ranks"] for ranks in found["stacks"]] == [[0, 2, 3, 4, 5, 6, 7], [1]]


def test_both_call_sites_of_a_mismatch_are_named(dumps: Path) -> None:
    found = verdict(dumps / "calls_another")
    sites = {side["collective"]["operation"]: side["collective"]["at"] for side in found["sides"]}
    assert len(sites) == 2 and all("calls_another" in at and "ranks.py" in at for at in sites.values())
    assert len({*sites.values()}) == 2


def test_a_late_rank_beside_a_mismatch_is_said(dumps: Path) -> None:
    assert any(note.startswith("rank 2 has not begun it") for note in verdict(dumps / "shape")["notes"])


def test_what_gloo_does_not_tell_is_not_said_for_sure(dumps: Path) -> None:
    found = verdict(dumps / "opposite_at_once")
    assert not found["sure"] and any("do not say which ranks" in note for note in found["notes"])


def rewritten(source: Path, target: Path, change: Any) -> Path:
    """The dumps of `source`, each after `change(dump, rank)`."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        rank = int(path.name.rpartition("_")[2])
        dump = plain_pickle(path.read_bytes())
        change(dump, rank)
        (target / path.name).write_bytes(pickle.dumps(dump, protocol=2))
    return target


# Scenario -> the groups beside the default one: name -> description and ranks.
GROUPS = {
    "opposite_order": {"1": ("tp", [0, 1]), "2": ("dp", [0, 1])},
    "opposite_at_once": {"1": ("tp", [0, 1]), "2": ("dp", [0, 1])},
    "two_groups": {"1": ("pair", [0, 1]), "2": ("pair", [2, 3])},
}


def as_nccl(dump: dict[str, Any], rank: int, size: int = 8, scenario: str = "") -> None:
    """As NCCL tells it: groups by their name with all ranks, and `completed`."""
    groups = {"0": ("default_pg", [*range(size)]), **GROUPS.get(scenario, {})}
    dump["pg_config"] = {
        name: {"name": name, "desc": what, "ranks": str(ranks)}
        for name, (what, ranks) in groups.items()
        if rank in ranks
    }
    for entry in dump["entries"]:
        entry["profiling_name"] = entry["profiling_name"].replace("gloo:", "nccl:")
        if entry["retired"]:
            entry["state"] = "completed"
    if scenario == "killed":
        dump["entries"][-1].update(state="started", retired=False)


# `torchfrtrace` on one folder after the other; what it says of each, or why it does not, lies beside it then.
TORCHS_OWN_TOOL = """
import os, sys
from torch.distributed.flight_recorder.fr_trace import main
for folder in sys.argv[1:]:
    if os.fork():
        os.wait()
        continue
    os.dup2(os.open(folder + ".said", os.O_WRONLY | os.O_CREAT, 0o600), 1)
    os.dup2(1, 2)
    main([folder, "--prefix", "nccl_trace_rank_"])
    sys.exit()
"""


@pytest.fixture(scope="module")
def as_nccls(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder a scenario: its dumps as NCCL writes them; beside it what torch's own tool says of them."""
    home = tmp_path_factory.mktemp("nccl")
    for name in (name for name in hung.SCENARIOS if (dumps / name).is_dir()):
        size = hung.SIZES.get(name, 2)
        rewritten(dumps / name, home / name, functools.partial(as_nccl, size=size, scenario=name))
    folders = sorted(map(str, home.iterdir()))
    subprocess.run([sys.executable, "-c", TORCHS_OWN_TOOL, *folders], timeout=240, check=True)
    return home


# The ranks that it names.
TOLD: dict[str, set[int]] = {
    "sleeps": {1},
    "leaves_early": {2},
    "leaves_no_dump": {1},
    "calls_another": {1},
    "shape": {2},
    "dtype": {2},
    "two_groups": {0, 1},  # 0 is in no later collective, because it waits for 1
    "opposite_order": {0, 1},
    "opposite_at_once": {0, 1},
    "stopped": {3},
    "killed": {2},
    **{name: {1} for name in hung.HELD},
    "fine": set(),
}
# Its words for a rank that is missing, that calls something else, and that has left no dump.
NAMES = re.compile(r"missing ranks: \{(.+)\}|Culprit rank (\d+)|Missing dump files from ranks \{(.+)\}")


@pytest.mark.parametrize("scenario", hung.SCENARIOS)
def test_torchs_own_tool_finds_the_same_rank_missing(as_nccls: Path, scenario: str) -> None:
    """Where it names one. It cannot read gloo's dumps, whose groups have no name: it gets them as NCCL writes
    them.
    """
    needs_fuse(scenario)
    folder = as_nccls / scenario
    said = (as_nccls / f"{scenario}.said").read_text()
    missing = {int(rank) for found in NAMES.findall(said) for rank in re.findall(r"\d+", " ".join(found))}
    assert missing == TOLD[scenario], said
    ours = verdict(folder)
    named = {each["rank"] for each in ours["missing"]}
    for note in ours["notes"]:
        named |= {int(rank) for rank in re.findall(r"^rank (\d+) has not begun it", note)}
    if "Culprit" in said:
        named |= {*ours["sides"][0]["ranks"]}
    if ours["kind"] == "order":
        named = {rank for side in ours["sides"] for rank in side["ranks"]}
    assert named <= missing and missing - named <= {*ours["waiting"]}, (said, ours)
    assert bool(named) == bool(missing), (said, ours)


def test_nobody_missing_is_the_network_or_a_gpu(dumps: Path, tmp_path: Path) -> None:
    def all_in(dump: dict[str, Any], rank: int) -> None:
        as_nccl(dump, rank)
        dump["entries"] = dump["entries"][:3]
        dump["entries"][-1]["state"] = "started"

    found = verdict(rewritten(dumps / "sleeps", tmp_path / "in", all_in))
    assert found["kind"] == "network" and found["waiting"] == [*range(8)] and found["sure"]
    assert found["text"].endswith("so the network or a GPU is to blame")

    def but_two(dump: dict[str, Any], rank: int) -> None:
        all_in(dump, rank)
        dump["entries"][-1]["state"] = "scheduled" if rank in (2, 5) else "started"

    found = verdict(rewritten(dumps / "sleeps", tmp_path / "two", but_two))
    assert found["text"].endswith("is to blame; the GPUs of ranks 2, 5 have not started it")


def test_nobody_missing_has_the_suspects_that_the_recorder_saw(dumps: Path, tmp_path: Path) -> None:
    home = tmp_path / "nodes/n1/torch_fr/76"
    home.parent.mkdir(parents=True)
    (tmp_path / "recorder").mkdir()
    (tmp_path / "run.json").write_text("{}")

    def all_in(dump: dict[str, Any], rank: int) -> None:
        as_nccl(dump, rank)
        dump["entries"] = dump["entries"][:3]
        dump["entries"][-1]["state"] = "started"

    rewritten(dumps / "sleeps", home, all_in)
    for path in home.iterdir():
        path.rename(home / f"fr_0a1b_rank_{path.name.rpartition('_')[2]}.pickle")
    suspects = ["GPU 3 of node n2 has told XID 79", "rank 0's connection to n2:29500 has 1.2 MiB unsent"]
    evidence = {"world": "0a1b", "sequence": 3, "missing": [], "suspects": suspects}
    (tmp_path / "recorder/findings.jsonl").write_text(
        json.dumps({"kind": "hang", "evidence": evidence}) + "\n"
    )
    assert verdict(tmp_path)["text"].endswith("is to blame; " + "; ".join(suspects))


def test_an_nccl_collective_that_timed_out_is_still_the_one(dumps: Path, tmp_path: Path) -> None:
    def timed_out(dump: dict[str, Any], rank: int) -> None:
        as_nccl(dump, rank)
        dump["entries"][-1]["retired"] = True

    found = verdict(rewritten(dumps / "sleeps", tmp_path / "late", timed_out))
    assert (found["kind"], [each["rank"] for each in found["missing"]]) == ("missing", [1])


def test_a_receive_whose_sender_never_comes(dumps: Path, tmp_path: Path) -> None:
    def receives(dump: dict[str, Any], rank: int) -> None:
        as_nccl(dump, rank)
        dump["entries"] = dump["entries"][:3]
        if rank in (2, 3):
            last = copy.deepcopy(dump["entries"][-1])
            last.update(is_p2p=True, p2p_seq_id=1, state="started", record_id=3)
            last["profiling_name"] = f"nccl:recv {rank}<-{rank - 1}"
            dump["entries"].append(last)

    found = verdict(rewritten(dumps / "sleeps", tmp_path / "p2p", receives))
    assert [each["rank"] for each in found["missing"]] == [1] and found["waiting"] == [2]


def test_ranks_of_two_nodes_and_of_two_worlds(dumps: Path, tmp_path: Path) -> None:
    """A node has a folder; a rollout server of two ranks has a rank 0 too."""
    for path in (dumps / "sleeps").iterdir():
        node = tmp_path / ("n1" if int(path.name[-1]) < 4 else "n2")
        node.mkdir(exist_ok=True)
        (node / path.name).write_bytes(path.read_bytes())
    (tmp_path / "server").mkdir()
    for path in (dumps / "fine").iterdir():
        (tmp_path / "server" / path.name).write_bytes(path.read_bytes())
    _, answer = explain(tmp_path)
    assert [(each["kind"], len(each["ranks"])) for each in answer["verdicts"]] == [
        ("missing", 8),
        ("nothing", 2),
    ]


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch evil",)


HOSTILE = {
    "code": pickle.dumps({"version": _Evil(), "pg_config": {}}),
    "a memo of 68 GB": b"\x80\x02]r\xff\xff\xff\xff.",
    "a promise of bytes": b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x0f.",
    "a string that is not there": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "no end": b"\x80\x02]q\x00",
    "nothing": b"",
    "depth": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "a list": pickle.dumps([1, 2], protocol=2),
    "deep JSON": b"[" * 100_000,
    "other JSON": b'{"version": 1}',
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_and_named(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nccl_trace_rank_0").write_bytes(HOSTILE[kind])
    done = CliRunner().invoke(cli, ["hang", str(tmp_path)])
    assert done.exit_code == 3, done.output
    assert f"not read: {tmp_path}/nccl_trace_rank_0: " in done.stdout
    assert not (tmp_path / "evil").exists()


ODD: tuple[Any, ...] = (None, 7, "x", [], {}, [[]], [{}], -1, 1 << 70, float("nan"), ["", None])


def test_odd_values_in_any_place_break_nothing(dumps: Path, tmp_path: Path) -> None:
    source = plain_pickle((dumps / "sleeps" / "nccl_trace_rank_0").read_bytes())
    path = tmp_path / "nccl_trace_rank_0"
    for key in source["entries"][-1]:
        for value in ODD:
            dump = copy.deepcopy(source)
            dump["entries"][-1][key] = value
            path.write_bytes(pickle.dumps(dump, protocol=2))
            explain(tmp_path)
    for key in ("pg_config", "entries", "pg_status"):
        for value in ODD:
            path.write_bytes(pickle.dumps({**source, key: value}, protocol=2))
            explain(tmp_path)


def test_a_full_buffer_is_no_missing_rank(dumps: Path, tmp_path: Path) -> None:
    """What a rank did in a group may have been overwritten: then it is said that it is not known."""

    def lost(dump: dict[str, Any], rank: int) -> None:
        as_nccl(dump, rank)
        if rank == 1:
            for number, entry in enumerate(dump["entries"]):
                entry.update(process_group=("7", "other"), record_id=900 + number, state="completed")

    found = verdict(rewritten(dumps / "sleeps", tmp_path / "lost", lost))
    assert not [each for each in found["missing"] if each["rank"] == 1]
    assert any(note.startswith("rank 1: older entries") for note in found["notes"])


def test_one_rank_of_512_is_found(dumps: Path, tmp_path: Path) -> None:
    """30 entries each, of which rank 77 lacks the last."""
    source = plain_pickle((dumps / "sleeps" / "nccl_trace_rank_0").read_bytes())
    as_nccl(source, 0, size=512)
    entry = source["entries"][0]
    for rank in range(512):
        entries = [
            {**entry, "collective_seq_id": n, "record_id": n - 1, "state": "completed", "input_sizes": [[n]]}
            for n in range(1, 31 - (rank == 77))
        ]
        if rank != 77:
            entries[-1].update(state="started", retired=False)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(
            pickle.dumps({**source, "entries": entries}, protocol=2)
        )
    lines, answer = explain(tmp_path)
    assert lines[0].startswith("Rank 77 is missing: ranks 0-76, 78-511 wait in all_reduce #30"), lines[0]
    assert len(answer["verdicts"][0]["ranks"]) == 512 and len(lines) < 40


def test_the_command_prints_json_for_programs(dumps: Path) -> None:
    done = CliRunner().invoke(cli, ["hang", str(dumps / "sleeps"), "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["verdicts"][0]["kind"] == "missing"


def test_an_empty_folder_is_no_success(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["hang", str(tmp_path)])
    assert done.exit_code == 3 and "no dump of PyTorch's flight recorder" in done.stderr


def test_the_names_of_other_files_are_left_alone(dumps: Path, tmp_path: Path) -> None:
    (tmp_path / "notes_2").write_text("nothing of ours")
    (tmp_path / "nccl_trace_rank_0").write_bytes((dumps / "fine" / "nccl_trace_rank_0").read_bytes())
    found = read_folder(tmp_path)
    assert not found.unread and len(found.worlds) == 1
    assert read_dump(tmp_path / "nccl_trace_rank_0", 0).entries


@pytest.mark.parametrize(
    ("sequence", "begins"), [(4, "Rank 1 (rollout, node n1, pid 77) is gone: "), (3, "Rank 1 left")]
)
def test_the_recorder_says_what_became_of_a_rank_without_a_dump(
    dumps: Path, tmp_path: Path, sequence: int, begins: str
) -> None:
    """Where it saw the same collective."""
    home, logs = tmp_path / "nodes/n1/torch_fr/76", tmp_path / "ray/n1/session_1/logs"
    for folder in (home, logs, tmp_path / "recorder"):
        folder.mkdir(parents=True)
    (tmp_path / "run.json").write_text("{}")
    shutil.copy(dumps / "leaves_no_dump/nccl_trace_rank_0", home / "gloo_fr_0a1b_rank_0.pickle")
    (logs / "worker-ab-01000000-77.err").write_text("one\ntwo\n\nthree\nfour\nTerminated by the kernel\n")
    said = {"said": "rank 1 (rollout, node n1, pid 77) is gone", "rank": 1, "pid": 77, "state": ""}
    evidence = {"world": "0a1b", "sequence": sequence, "missing": [said]}
    (tmp_path / "recorder/findings.jsonl").write_text(
        json.dumps({"kind": "hang", "evidence": evidence}) + "\n"
    )
    lines, answer = explain(tmp_path)
    assert lines[0].startswith(begins) and "rank 0 waits in all_reduce #4 of default_pg" in lines[0]
    assert ("    Terminated by the kernel" in lines) == (sequence == 4) and "    one" not in lines
    [missing] = answer["verdicts"][0]["missing"]
    assert (missing["seen"] == said) == (sequence == 4) and answer["verdicts"][0]["sure"] == (sequence == 4)


def entries(backend: str, *states: str, operation: str = "all_reduce") -> list[dict[str, object]]:
    """Collectives 1, 2, … of one group as torch writes them."""
    return [
        {
            "process_group": ["0", "default_pg"],
            "collective_seq_id": sequence,
            "is_p2p": False,
            "profiling_name": f"{backend}:{operation}",
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
            "state": "scheduled" if backend == "gloo" and state == "completed" else state,
            "retired": state == "completed",
            "time_created_ns": sequence,
            "frames": [],
        }
        for sequence, state in enumerate(states, 1)
    ]


def of_ranks(folder: Path, *ranks: list[dict[str, object]], suffix: str = "") -> Path:
    members = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(len(ranks))])}}
    folder.mkdir(parents=True)
    for rank, recorded in enumerate(ranks):
        dump = {"version": "2.4", "pg_config": members, "entries": recorded}
        (folder / f"fr_1a_rank_{rank}{suffix}").write_text(json.dumps(dump))
    return folder


@pytest.mark.parametrize("last", ["completed", "started"])
@pytest.mark.parametrize("more", [1, 40])
def test_dumps_of_a_loop_that_goes_on_accuse_nobody(tmp_path: Path, last: str, more: int) -> None:
    """Rank 1's watcher has looked later than rank 0's."""
    behind = entries("nccl", *["completed"] * 100)
    ahead = entries("nccl", *["completed"] * (100 + more), last)
    found = verdict(of_ranks(tmp_path / "dumps", behind, ahead))
    assert (found["kind"], found["missing"]) == ("moments", [])
    assert found["text"].startswith(
        "no hang is seen, for the dumps are of different moments: rank 1 has ended"
    )
    assert found["text"].endswith("which rank 0 had not begun when its dump was written")


def test_a_rank_that_is_missing_is_named_beside_one_whose_dump_is_older(tmp_path: Path) -> None:
    """One group went on between the dumps of ranks 0 and 1; in another, rank 1 is missing."""
    pair = {"process_group": ["1", "pair"]}
    two = [{**each, **pair} for each in entries("nccl", "completed", "started")]
    one = [{**each, **pair} for each in entries("nccl", "completed")]
    went_on = entries("nccl", "completed", "completed")
    folder = of_ranks(
        tmp_path / "dumps", [*entries("nccl", "completed"), *two], [*went_on, *one], [*went_on, *two]
    )
    found = verdict(folder)
    assert (found["kind"], found["sure"]) == ("missing", False)
    assert found["text"].startswith("rank 1 is missing: ranks 0, 2 wait in all_reduce #2 of pair")
    assert any("of different moments" in note for note in found["notes"])


def test_what_one_rank_can_end_alone_proves_nothing(tmp_path: Path) -> None:
    behind = entries("nccl", "completed", operation="broadcast")
    ahead = entries("nccl", "completed", "completed", "started", operation="broadcast")
    found = verdict(of_ranks(tmp_path / "dumps", behind, ahead))
    assert (found["kind"], found["sure"]) == ("missing", True)


def test_gloo_does_not_tell_how_a_collective_ended(tmp_path: Path) -> None:
    behind, ahead = entries("gloo", "completed"), entries("gloo", "completed", "completed", "scheduled")
    found = verdict(of_ranks(tmp_path / "dumps", behind, ahead))
    assert (found["kind"], found["sure"]) == ("missing", False)
    assert any("may be of different moments" in note for note in found["notes"])


def test_what_came_next_has_made_room(tmp_path: Path) -> None:
    """A rank keeps its latest collectives only."""
    ahead = entries("nccl", *["completed"] * 40, operation="broadcast")[8:]
    found = verdict(of_ranks(tmp_path / "dumps", entries("nccl", "completed", operation="broadcast"), ahead))
    assert "has not begun what came after #1 of default_pg, which rank 1 has ended" in found["text"]
