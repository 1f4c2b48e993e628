"""Nothing finished is lost in a drain, whatever its profilers do: an importer that hangs, a stop that takes
longer than planned.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from tests.hung import hung
from tests.needs import need
from tests.nsys_stand_in import answering_nsys
from tests.strange_storage import strange

from rlprof_ops.collect.drain import drain_steps
from rlprof_ops.collect.drain.sequence import Budget, DrainSequence
from rlprof_ops.request import CaptureSpec, ProfileRequest
from rlprof_ops.supervisor import salvage
from rlprof_ops.supervisor.node.node_state import NodeState

pytestmark = pytest.mark.whole

JOB = f"s{os.getpid()}"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    for name in ("node/tmp", "node/events", "node/profiles", "node/logs", "run/nodes"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "node"


def stub_nsys(folder: Path, monkeypatch: pytest.MonkeyPatch, *, stop: str = "exit 0", importer: str) -> None:
    """An nsys whose session lasts until it is stopped: `stop` and `importer` are what those two run."""
    nsys = answering_nsys(
        folder,
        session=f"rlprof-{JOB}-w",
        sessions='[ -e "$0.stopped" ] || listing',
        stop=f'{stop}; touch "$0.stopped"',
        export="exec sleep 600",
        importer=importer,
    )
    monkeypatch.setenv("RLPROF_NSYS", str(nsys))


def whole_reports(node: Path) -> list[str]:
    names = [f"w_rank{rank}_step3-4_n1_7.nsys-rep" for rank in range(6)] + ["report1.nsys-rep"]
    for name in names:
        (node / "tmp" / name).write_bytes(b"report " + name.encode())
    return names


def test_a_list_of_sessions_that_a_dead_storage_holds_is_waited_for_no_longer_than_its_time(
    tmp_path, monkeypatch
):
    need("fuse")
    mount = tmp_path / "mount"
    nsys = answering_nsys(tmp_path / "bin", sessions=f"exec stat {mount}/dead")
    monkeypatch.setenv("RLPROF_NSYS", str(nsys))
    monkeypatch.setattr(drain_steps, "_LIST_TIMEOUT_S", 1.0)
    with strange(mount, tmp_path / "backing", "holds=dead"):
        began = time.monotonic()
        phase = drain_steps.close_windows(tmp_path, JOB, gate_first_s=0, say=lambda text: None)
        took_s = time.monotonic() - began

    assert phase.done == ()
    assert (tmp_path / "bin/nsys.calls").read_text().split() == ["sessions", "sessions"]
    assert took_s < 12, "SIGKILL does not end such a process, so nobody may wait for it"


def test_an_importer_that_hangs_costs_no_finished_report(node, tmp_path, monkeypatch):
    stub_nsys(tmp_path / "nsys", monkeypatch, importer="exec sleep 600")
    names = whole_reports(node)
    (node / "tmp/a_first_in_name_order.qdstrm").write_bytes(b"raw" * 100)

    began = time.monotonic()
    whole = salvage.salvage(node, tmp_path / "run", "n1", JOB, seconds=30)

    assert time.monotonic() - began < 60
    home = {path.name: path.read_bytes() for path in (tmp_path / "run/profiles").rglob("*.nsys-rep")}
    assert home == {name: b"report " + name.encode() for name in names}
    assert (tmp_path / "run/nodes/n1/tmp/a_first_in_name_order.qdstrm").read_bytes() == b"raw" * 100
    record = json.loads((tmp_path / "run/nodes/n1.json").read_text())
    assert (whole, record["clean"], record["cleared"]) == (True, False, True)
    assert [each["path"] for each in record["failed"]] == ["tmp/a_first_in_name_order.qdstrm"]
    assert not node.exists()  # all of it is in the run folder, where the harvest tries again


def test_an_importer_that_makes_progress_may_go_on_until_slurm_ends_the_job(node, tmp_path, monkeypatch):
    spin = f"""exec {sys.executable} -c 'import sys, time
until = time.process_time() + 5
while time.process_time() < until: pass
open(sys.argv[1], "w").write("NVIDIA Tegra Profiler Report [END]")' "$4" """
    stub_nsys(tmp_path / "nsys", monkeypatch, importer=spin)
    (node / "tmp/w_rank0_step3-4_n1_7.qdstrm").write_bytes(b"raw" * 100)
    phase = drain_steps.recover(node, deadline_s=1, most_s=300, say=lambda text: None)
    assert phase.done == ("profiles/nsight/w/rank0/w_rank0_step3-4_n1_7.nsys-rep",), phase

    stub_nsys(tmp_path / "other", monkeypatch, importer="exec sleep 600")
    (node / "tmp/w_rank0_step5-6_n1_7.qdstrm").write_bytes(b"raw" * 100)
    phase = drain_steps.recover(node, deadline_s=1, most_s=300, say=lambda text: None)
    assert "did not end within" in phase.failed[0][1] and phase.seconds < 60, phase


@pytest.mark.parametrize(
    "place",
    [
        "tmp/w_rank0_step3-4_n1_7.nsys-rep",
        "tmp/deep/er/x.qdstrm",
        "ray/session_1/logs/nsight/x.nsys-rep",
        "elsewhere/x.pt.trace.json.gz",
        "profiles/torch/w/rank0/x.pt.trace.json.gz",
    ],
)
def test_a_report_anywhere_that_the_run_folder_lacks_keeps_the_node_folder(node, tmp_path, place):
    (node / place).parent.mkdir(parents=True, exist_ok=True)
    (node / place).write_bytes(b"report")
    sequence = DrainSequence(node, tmp_path / "run", "n1", JOB, say=lambda text: None)
    record = sequence.write_record({"clean": True})
    assert (record["clean"], record["cleared"]) == (False, False)
    assert [(file["path"], file["state"]) for file in record["files"]] == [(place, "left")]


@pytest.mark.parametrize(
    "place",
    [
        "tmp/x.txt",
        "tmp/.half.nsys-rep",
        "profiles/torch/w/rank0/x.pt.trace.json.gz.tmp",
        "ray/session_1/runtime_resources/working_dir_files/x.nsys-rep",
        "tmp/x.qdstrm.imported",
    ],
)
def test_what_is_no_report_does_not(node, tmp_path, place):
    (node / place).parent.mkdir(parents=True, exist_ok=True)
    (node / place).write_bytes(b"report")
    sequence = DrainSequence(node, tmp_path / "run", "n1", JOB, say=lambda text: None)
    assert sequence.write_record({"clean": True})["clean"] is True


def test_a_stop_that_makes_progress_may_take_longer_than_its_share(node, tmp_path, monkeypatch):
    grow = f"for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero >> {node}/tmp/r.qdstrm; sleep 1; done"
    stub_nsys(tmp_path / "nsys", monkeypatch, stop=grow, importer="exit 1")
    phase = drain_steps.close_windows(
        node, JOB, deadline_s=2, most_s=60, gate_first_s=0, say=lambda text: None
    )
    assert (phase.done, phase.failed) == ((f"rlprof-{JOB}-w",), ())
    assert 5 < phase.seconds < 30


def test_a_stop_that_hangs_gets_its_share_alone(node, tmp_path, monkeypatch):
    stub_nsys(tmp_path / "nsys", monkeypatch, stop="sleep 600", importer="exit 1")
    phase = drain_steps.close_windows(
        node, JOB, deadline_s=2, most_s=60, gate_first_s=0, say=lambda text: None
    )
    [(name, reason)] = phase.failed
    assert (phase.done, name) == ((), f"rlprof-{JOB}-w") and "did not return within" in reason
    assert phase.seconds < 12  # five seconds without progress


def test_the_shares_of_a_budget_never_exceed_it():
    clock = [0.0]
    budget = Budget(90, clock=lambda: clock[0])
    for step in ("close_windows", "end_wrapped", "wait_profilers", "recover", "stop_ray", "last_sync"):
        clock[0] += budget.share(step)
    assert clock[0] < 90
    assert Budget(90).share("close_windows") > 15
    assert Budget(90).share("last_sync") > 60  # what the others have left is the last one's
    assert Budget(90, 600).most("close_windows") > 90


def test_a_budget_that_is_spent_still_gives_a_moment():
    clock = [0.0]
    budget = Budget(1, clock=lambda: clock[0])
    clock[0] = 5
    assert budget.share("last_sync") == 0.5


def test_what_came_after_its_window_goes_to_the_requests_output_dir_too(node, tmp_path, monkeypatch):
    secret = "hf_abcdefgh12345"
    monkeypatch.setenv("HF_TOKEN", secret)
    recovered = node / "tmp/policy_rank0_step3-4_n1_7.nsys-rep"
    recovered.write_bytes(b"NVIDIA Tegra Profiler Report " + secret.encode() + b" [END]")
    at_the_end = node / "inplace/rocprof_sys/policy/rank1/policy_rank1_step3-4_n1_8_perfetto-trace.proto"
    at_the_end.parent.mkdir(parents=True)
    at_the_end.write_bytes(b"trace")
    (at_the_end.parent / "metadata-8.json").write_text(secret)
    (node / "profiles/nsight/policy/rank0").mkdir(parents=True)
    (node / "profiles/nsight/policy/rank0/cut.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report")
    request = ProfileRequest((CaptureSpec(workers=("policy",)),), output_dir=str(tmp_path / "copies"))
    (node / "state").mkdir()
    NodeState(node / "state", request=request.to_json()).save()

    assert salvage.salvage(node, tmp_path / "run", "n1", JOB, seconds=90)

    copies = {path.name: path.read_bytes() for path in (tmp_path / "copies").rglob("*") if path.is_file()}
    assert sorted(copies) == sorted([recovered.name, at_the_end.name])
    assert b"*" * len(secret) in copies[recovered.name] and secret.encode() not in copies[recovered.name]
    assert (tmp_path / "copies/rocprof_sys/policy/rank1" / at_the_end.name).exists()


def test_an_output_dir_that_hangs_costs_its_share_of_the_drain(node, tmp_path, capfd):
    need("fuse")
    (node / "tmp/policy_rank0_step3-4_n1_7.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report [END]")
    copies = tmp_path / "copies"
    copies.mkdir()
    request = ProfileRequest((CaptureSpec(workers=("policy",)),), output_dir=str(copies))
    (node / "state").mkdir()
    NodeState(node / "state", request=request.to_json()).save()
    with hung(copies):
        began = time.monotonic()
        assert salvage.salvage(node, tmp_path / "run", "n1", JOB, seconds=90)
        assert time.monotonic() - began < 90
    assert "did not take all reports within" in capfd.readouterr().out
    assert list((tmp_path / "run/profiles").rglob("*.nsys-rep"))
