"""Harvest: every planned capture ends with a state and, unless ok, a true reason."""

import json
import os
import time

import jsonschema
import pytest
from tests.collect.runfolder import NSYS_FRAME, TRACE, RunFolder

from rlprof_ops.collect import job_state
from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.collect.harvest.manifest_schema import schema
from rlprof_ops.collect.harvest.run_harvest import harvest
from rlprof_ops.errors import RlprofError
from rlprof_ops.slurm.job_over import read_state

SCHEMA = schema()
REQUEST = {"captures": [{"backend": "nsight", "workers": ["policy_worker"], "steps": "3:5, 7"}]}


def run(folder, **more):
    """Harvest without looking inside (the nsight files of these tests are frames only) and check the
    schema.
    """
    manifest = harvest(folder, content_budget_s=0, **more)
    written = json.loads((folder / "manifest.json").read_text())
    jsonschema.validate(written, SCHEMA)
    assert Manifest.from_dict(written, str(folder)) == manifest
    return manifest


def reasons(manifest):
    return {capture.id: (capture.state, capture.reason) for capture in manifest.captures}


@pytest.fixture
def job(tmp_path):
    return RunFolder(tmp_path / "4711-logs", REQUEST)


def test_what_the_schema_refuses_of_a_row_the_reader_refuses_too(job):
    """Both come from the same annotations: a value of another type in any field of any row."""
    job.worker("policy_worker", 0)
    for start, stop in ((3, 5), (7, 8)):
        job.report("nsight", "policy_worker", 0, start, stop)
    written = run(job.write()).to_dict()
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    fields = [(rows, name) for rows in ("captures", "reports") for name in written[rows][0]]
    assert len(fields) == 39 and all(SCHEMA["$defs"][kind]["properties"] for kind in SCHEMA["$defs"])
    for rows, name in fields:
        damaged = {**written, rows: [{**written[rows][0], name: {"no": "such"}}]}
        assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(damaged), (rows, name)
        with pytest.raises(RlprofError, match="damaged"):
            Manifest.from_dict(damaged)


def test_a_job_where_all_went_well_is_complete(job):
    for rank, node in enumerate(("n1", "n2")):
        for start, stop in ((3, 5), (7, 8)):
            job.report("nsight", "policy_worker", rank, start, stop, node=node)
        job.worker(
            "policy_worker",
            rank,
            node,
            windows=[("closed", "nsight", 3, 5, None), ("closed", "nsight", 7, 8, None)],
        )
    manifest = run(job.write())
    assert manifest.complete and not manifest.unplanned
    assert manifest.coverage == {
        "planned": 4,
        "ok": 4,
        "recovered": 0,
        "empty": 0,
        "truncated": 0,
        "missing": 0,
        "unplanned": 0,
    }
    assert {capture.host for capture in manifest.captures} == {"n1", "n2"}


def test_the_driver_that_failed_is_named_with_its_code_and_the_last_step(job):
    job.report("nsight", "policy_worker", 0, 3, 5)
    job.worker("policy_worker", 0, windows=[("closed", "nsight", 3, 5, None)], last_step=5, ended=False)
    manifest = run(job.write(driver={"started_ns": 2, "ended_ns": 3, "exit_code": 7, "signal": None}))
    assert reasons(manifest) == {
        "nsight/policy_worker/rank0/step3-4": ("ok", ""),
        "nsight/policy_worker/rank0/step7-7": (
            "missing",
            "the driver ended with exit code 7 before step 7 (last step seen: 5)",
        ),
    }


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"cause": "time_limit", "detail": ""}, "the time limit came before step 7 (last step seen: 5)"),
        (
            {"cause": "signal", "detail": "SIGTERM"},
            "the job was stopped (SIGTERM) before step 7 (last step seen: 5)",
        ),
        ({"cause": "driver_exit", "detail": ""}, "training ended before step 7 (last step seen: 5)"),
        ({"cause": "running"}, "the job is still running and has not reached step 7 (last step seen: 5)"),
    ],
)
def test_the_end_of_the_job_is_the_reason(job, end, expected):
    job.report("nsight", "policy_worker", 0, 3, 5)
    job.worker("policy_worker", 0, windows=[("closed", "nsight", 3, 5, None)], last_step=5)
    assert reasons(run(job.write(end=end)))["nsight/policy_worker/rank0/step7-7"] == ("missing", expected)


WHEN = {"step_time": "> 2 x median"}
ON_ITS_OWN = {"captures": [{"backend": "torch", "workers": ["policy_worker"], "when": WHEN}]}


def told(event, start, asked_by, **more):
    return (event, "torch", start, start + 1, None, {"asked_by": asked_by, **more})


def triggered(job, *rows):
    job.file("recorder/captures.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())


@pytest.mark.parametrize("asked_by", ["when-slow_step-step4-1", "r7a1"])
def test_a_window_asked_while_the_job_ran_that_left_no_report_has_its_line(tmp_path, asked_by):
    job = RunFolder(tmp_path / "4711-logs", ON_ITS_OWN)
    job.report("torch", "policy_worker", 1, 5, 6)
    lost = [told("opened", 5, asked_by), told("failed", 5, asked_by, reason="no space left")]
    for rank, windows in enumerate((lost, [told("opened", 5, asked_by), told("closed", 5, asked_by)])):
        job.worker("policy_worker", rank, windows=windows)
    job.worker("policy_worker", 2, windows=[told("opened", 5, asked_by)], last_step=5, ended=False)
    job.worker("policy_worker", 3, windows=[told("opened", 7, "trainer"), told("failed", 0, asked_by)])
    manifest = run(job.write(end={"cause": "signal", "detail": "SIGKILL"}))
    assert not manifest.complete and reasons(manifest) == {
        "torch/policy_worker/rank0/step5-5": ("missing", "no space left"),
        "torch/policy_worker/rank2/step5-5": (
            "missing",
            "the worker ended while the window was open (last step seen: 5); the job was stopped (SIGKILL)",
        ),
    }
    assert {capture.asked_by for capture in manifest.captures} == {asked_by}
    assert [report.capture for report in manifest.reports] == [None]


def test_a_window_asked_while_the_job_ran_that_was_cut_short_has_its_line(tmp_path):
    asked_by = "when-slow_step-step4-1"
    job = RunFolder(tmp_path / "4711-logs", ON_ITS_OWN)
    whole = [told("opened", 5, asked_by), told("closed", 5, asked_by)]
    cut = [whole[0], told("closed", 5, asked_by, partial=True)]
    for rank, windows in enumerate((whole, cut, whole)):
        job.report("torch", "policy_worker", rank, 5, 6, data=b'{"traceEvents": [' if rank == 2 else None)
        job.worker("policy_worker", rank, windows=windows)
    manifest = run(job.write(end={"cause": "signal", "detail": "SIGTERM"}))
    assert {capture.rank: (capture.state, capture.asked_by) for capture in manifest.captures} == {
        1: ("truncated", asked_by),
        2: ("truncated", asked_by),
    }
    assert all(capture.reason and capture.report for capture in manifest.captures)
    assert [report.rank for report in manifest.unplanned] == [0]


@pytest.mark.parametrize(
    ("workers", "listens", "last_step", "exit_code", "expected"),
    [
        (
            ["polcy"], True, 8, 0,
            "no worker matched pattern 'polcy' (seen: policy_worker; nearest: policy_worker)",
        ),
        (["*"], False, 8, 0, "policy_worker does not listen: the job was started with RLPROF_ON_DEMAND=0"),
        (["*"], True, 8, 0, "asked after step 4, and no worker opened a window (last step seen: 8)"),
        (
            ["*"], True, 5, 9,
            "asked after step 4, and no worker opened a window; the driver ended with exit code 9"
            " (last step seen: 5)",
        ),
        (["*"], True, 5, 0, None),  # training was over
    ],
)  # fmt: skip
def test_what_a_when_asked_and_nobody_answered_has_its_line(
    tmp_path, workers, listens, last_step, exit_code, expected
):
    job = RunFolder(tmp_path / "4711-logs", {"captures": [{**ON_ITS_OWN["captures"][0], "workers": workers}]})
    job.worker("policy_worker", 0, last_step=last_step, on_demand=listens)
    asked = {"id": "when-slow_step-step4-1", "step": 4, "t_ns": 1, "ranks": None}
    strange = [{"id": "when-slow_step-step4-9", "step": 4}, {"id": "x"}, {**asked, "step": "4"}]
    triggered(job, asked, *strange)
    manifest = run(job.write(driver={"started_ns": 2, "ended_ns": 3, "exit_code": exit_code, "signal": None}))
    missing = {f"torch/{workers[0]}/rank*/step5-5": ("missing", expected)} if expected else {}
    assert reasons(manifest) == missing
    running = run(job.write(end={"cause": "running"}))
    assert not running.captures


def test_the_runtimes_own_reason_wins(job):
    windows = [
        ("opened", "nsight", 3, 5, None),
        ("failed", "nsight", 3, 5, None, {"reason": "nsys start: disk full"}),
    ]
    job.worker("policy_worker", 0, windows=windows)
    assert reasons(run(job.write()))["nsight/policy_worker/rank0/step3-4"] == (
        "missing",
        "nsys start: disk full",
    )


def test_a_worker_that_ended_with_its_window_open(job):
    job.worker("policy_worker", 0, windows=[("opened", "nsight", 3, 5, None)], last_step=4, ended=False)
    reason = reasons(run(job.write()))["nsight/policy_worker/rank0/step3-4"][1]
    assert reason == "the worker ended while the window was open (last step seen: 4)"


@pytest.mark.parametrize(
    ("last_step", "why"),
    [
        (5, "as Ray does with actors that are alive when the driver ends"),
        (4, "the worker ended while the window was open (last step seen: 4)"),
    ],
)
def test_a_tool_that_writes_at_the_end_of_a_process_that_was_ended_by_force(tmp_path, last_step, why):
    window = ("opened", "rocprof_sys", 3, 5, None)
    request = {"captures": [{"backend": "rocprof_sys", "workers": ["policy_worker"], "steps": "3:5"}]}
    job = RunFolder(tmp_path / "4711-logs", request, nodes=("n1",))
    job.worker("policy_worker", 0, windows=[window], last_step=last_step, ended=True)
    assert why in reasons(run(job.write()))["rocprof_sys/policy_worker/rank0/step3-4"][1]


def test_a_lost_node_is_named(job):
    job.records["n2"] = None
    job.worker("policy_worker", 0, "n2", windows=[("opened", "nsight", 3, 5, None)], last_step=4, ended=False)
    found = reasons(run(job.write()))
    assert (
        found["nsight/policy_worker/rank0/step3-4"][1]
        == "node n2 was lost while the window was open (last step seen: 4)"
    )
    assert (
        found["nsight/policy_worker/rank0/step7-7"][1] == "node n2 was lost before step 7 (last step seen: 4)"
    )


def test_events_that_did_not_all_come_over_are_no_proof_that_a_window_was_not_opened(job):
    job.records["n2"] = None
    job.worker("policy_worker", 0, "n2", last_step=4, ended=False)
    reason = reasons(run(job.write()))["nsight/policy_worker/rank0/step3-4"][1]
    assert (
        reason
        == "node n2 left no record, and what came over of its events does not speak of the window (last step"
        " seen: 4)"
    )


def test_a_report_that_was_complete_on_a_lost_node(job):
    job.records["n2"] = None
    job.worker("policy_worker", 0, "n2", windows=[("closed", "nsight", 3, 5, None)], ended=False)
    reason = reasons(run(job.write()))["nsight/policy_worker/rank0/step3-4"][1]
    assert reason == "its report was complete on node n2, but node n2 was lost before it was copied"


def test_a_node_whose_folder_had_vanished_says_so_of_each_capture(job):
    """What salvage found is the cause: nobody knows whether a window that was open was finished."""
    job.records["n2"] = {"schema": 1, "node": "n2", "gone": "/tmp/rlprof-0-7 is not there"}
    job.worker("policy_worker", 0, "n2", windows=[("opened", "nsight", 3, 5, None)], last_step=4, ended=False)
    found = reasons(run(job.write()))
    assert found["nsight/policy_worker/rank0/step3-4"][1] == (
        "the window was open when the node's events came over for the last time (last step seen: 4); on node"
        " n2 /tmp/rlprof-0-7 is not there"
    )
    assert found["nsight/policy_worker/rank0/step7-7"][1] == (
        "node n2 ended without a record before step 7 (last step seen: 4); on node n2 /tmp/rlprof-0-7 is not"
        " there"
    )


def test_a_report_that_could_not_be_copied_says_why_and_where_it_is(job):
    path = str(job.place("nsight", "policy_worker", 0, 3, 5, None, "n1", 100))
    job.records["n1"]["failed"].append({"path": path, "reason": "No space left on device"})
    job.worker("policy_worker", 0, windows=[("closed", "nsight", 3, 5, None)])
    reason = reasons(run(job.write()))["nsight/policy_worker/rank0/step3-4"][1]
    assert (
        reason
        == "its report was complete on node n1, but copying failed: No space left on device (it may still be"
        f" there as {path!r})"
    )


def test_a_report_that_stayed_on_its_node_says_where(job):
    path = str(job.place("nsight", "policy_worker", 0, 3, 5, None, "n1", 100))
    job.sent("n1", path, 5, state="left")
    job.worker("policy_worker", 0, windows=[("opened", "nsight", 3, 5, None)])
    reason = reasons(run(job.write()))["nsight/policy_worker/rank0/step3-4"][1]
    assert (
        reason
        == f"its report was still on node n1 at the end, as {path!r} of the node folder: the last sync did"
        " not bring it over"
    )


def test_a_pattern_without_a_worker_names_the_nearest(tmp_path):
    job = RunFolder(
        tmp_path / "r", {"captures": [{"backend": "nsight", "workers": ["policy_wroker"], "steps": "3"}]}
    )
    job.worker("policy_worker", 0)
    job.worker("generation_worker", 0, pid=101)
    [capture] = run(job.write()).captures
    assert (capture.state, capture.rank) == ("missing", None)
    assert (
        capture.reason
        == "no worker matched pattern 'policy_wroker' (seen: generation_worker, policy_worker; nearest:"
        " policy_worker)"
    )


def test_a_rank_beyond_the_world_is_missing_with_the_world(tmp_path):
    job = RunFolder(
        tmp_path / "r",
        {"captures": [{"backend": "nsight", "workers": ["policy_worker"], "steps": "3", "ranks": [0, 5]}]},
    )
    job.worker("policy_worker", 0, world_size=2)
    found = reasons(run(job.write()))
    assert (
        found["nsight/policy_worker/rank5/step3-3"][1]
        == "rank 5 does not exist: policy_worker has 2 ranks, 0 to 1"
    )


def test_a_rank_that_never_registered(job):
    job.worker("policy_worker", 0, world_size=2)
    reason = reasons(run(job.write()))["nsight/policy_worker/rank1/step3-4"][1]
    assert reason == "policy_worker rank 1 never registered with the profiler"


def test_a_node_without_the_plugin_is_the_reason(job):
    job.records["n1"]["plugin_loaded"] = False
    job.worker("policy_worker", 0)
    reason = reasons(run(job.write()))["nsight/policy_worker/rank0/step3-4"][1]
    assert reason == "the worker ran without the profiler: node n1 did not load the runtime-env plugin"


def test_empty_and_truncated_reports_are_not_ok(job):
    job.worker("policy_worker", 0)
    job.report("nsight", "policy_worker", 0, 3, 5, data=b"")
    job.report("nsight", "policy_worker", 0, 7, 8, data=NSYS_FRAME[:-5])
    states = {key: state for key, (state, _) in reasons(run(job.write())).items()}
    assert list(states.values()) == ["empty", "truncated"]


def test_a_report_with_another_size_than_its_node_sent_is_truncated(job):
    job.worker("policy_worker", 0)
    path = job.report("nsight", "policy_worker", 0, 3, 5)
    job.sent("n1", str(path.relative_to(job.root)), 5)
    state, reason = reasons(run(job.write()))["nsight/policy_worker/rank0/step3-4"]
    assert (state, reason) == ("truncated", f"it has {len(NSYS_FRAME)} bytes, its node sent 5")


def test_a_window_that_was_cut_short_is_truncated(job):
    job.report("nsight", "policy_worker", 0, 3, 5)
    job.worker("policy_worker", 0, windows=[("closed", "nsight", 3, 5, None, {"partial": True})], last_step=3)
    state, reason = reasons(run(job.write()))["nsight/policy_worker/rank0/step3-4"]
    assert (state, reason) == ("truncated", "the window (steps 3 to 4) was cut short (last step seen: 3)")


def test_a_worker_that_says_why_it_cut_a_window_short_is_heard(tmp_path):
    request = {"captures": [{"backend": "torch", "workers": ["policy_worker"], "steps": "3:5"}]}
    job = RunFolder(tmp_path / "4711-logs", request, nodes=("n1",))
    job.report("torch", "policy_worker", 0, 3, 5)
    told = {"partial": True, "reason": "yielded to another"}
    job.worker("policy_worker", 0, windows=[("closed", "torch", 3, 5, None, told)], last_step=8)
    state, reason = reasons(run(job.write()))["torch/policy_worker/rank0/step3-4"]
    assert (state, reason) == ("truncated", "the window (steps 3 to 4) was cut short: yielded to another")


@pytest.mark.parametrize(
    ("engine", "state"),
    [
        ([("opened", 25), ("closed", 45)], "truncated"),
        ([("failed", 25)], "truncated"),
        ([("failed", 25), ("opened", 30), ("closed", 45)], "truncated"),
        ([("opened", 5), ("closed", 10)], "ok"),  # it came before: a worker that was started again
    ],
)
def test_what_the_engine_beside_its_server_lacks_is_said(tmp_path, engine, state):
    """Both are one worker and rank, each records the window in its own process."""
    request = {"captures": [{"backend": "torch", "workers": ["rollout"], "steps": "3:5"}]}
    job = RunFolder(tmp_path / "4711-logs", request, nodes=("n1",))

    def windows(*told, **more):
        return [(event, "torch", 3, 5, None, {"t_ns": t_ns, **more}) for event, t_ns in told]

    job.worker("rollout", 0, windows=windows(("opened", 20), ("closed", 40)))
    yielded = windows(*engine, partial=True, reason="yielded to another")
    job.worker("rollout", 0, pid=101, windows=yielded)
    job.report("torch", "rollout", 0, 3, 5)
    if engine[-1][0] == "closed":
        job.report("torch", "rollout", 0, 3, 5, pid=101)
    reason = "its process 101 has not recorded all of the window: yielded to another"
    capture = run(job.write()).captures[0]
    assert (capture.state, capture.reason) == (state, "" if state == "ok" else reason)
    assert "_100." in capture.report  # the server's is whole


@pytest.mark.parametrize(
    ("backend", "registered", "windows", "state"),
    [
        ("torch", {"t_ns": 25, "began": 3}, [], "truncated"),
        ("torch", {"t_ns": 25, "began": 2}, [], "truncated"),  # its node had not heard of the step yet
        ("torch", {"t_ns": 25}, [("failed", "torch", 7, 8, None, {"t_ns": 60})], "truncated"),
        ("torch", {"t_ns": 25}, [("opened", "torch", 3, 5, None), ("closed", "torch", 3, 5, None)], "ok"),
        ("torch", {"t_ns": 15, "began": 2}, [], "ok"),  # idle, or ended before: it had nothing to record
        ("torch", {"t_ns": 45, "began": 5}, [], "ok"),  # the window was over
        ("torch", {"t_ns": 39, "began": 5}, [], "ok"),  # its steps were over, the server's report was written
        ("torch", {"t_ns": 25, "follows": False}, [], "ok"),  # a data loader, by the script's first lines
        ("nsight", {"t_ns": 25}, [], "ok"),  # the session of its parent has it
    ],
)
def test_a_process_that_came_in_the_window_and_took_nothing_of_it_is_said(
    tmp_path, backend, registered, windows, state
):
    request = {"captures": [{"backend": backend, "workers": ["rollout"], "steps": "3:5"}]}
    job = RunFolder(tmp_path / "4711-logs", request, nodes=("n1",))
    server = [
        (event, backend, 3, 5, None, {"t_ns": t_ns}) for event, t_ns in (("opened", 20), ("closed", 40))
    ]
    job.worker("rollout", 0, windows=server)
    job.worker("rollout", 0, pid=101, windows=windows, **{"follows": True, **registered})
    job.report(backend, "rollout", 0, 3, 5)
    reason = "its process 101 registered while the window was open and recorded nothing of it"
    capture = run(job.write()).captures[0]
    assert (capture.state, capture.reason) == (state, "" if state == "ok" else reason)


@pytest.mark.parametrize(
    ("backends", "planned"), [((), []), (("torch",), []), (("nsight",), ["rollout_tp0"])]
)
def test_inner_workers_inside_their_servers_session_have_no_capture_of_their_own(tmp_path, backends, planned):
    """vLLM's `mp` executor has children in the server's session, its `ray` executor has actors."""
    request = {"captures": [{"backend": "nsight", "workers": ["rollout"], "steps": "3"}]}
    job = RunFolder(tmp_path / "4711-logs", request, nodes=("n1",))
    job.worker("rollout", 0, windows=[("opened", "nsight", 3, 4, None), ("closed", "nsight", 3, 4, None)])
    job.worker("rollout_tp0", 0, pid=101, backends=backends)
    job.report("nsight", "rollout", 0, 3, 4)
    captures = run(job.write()).captures
    assert [capture.worker for capture in captures] == ["rollout", *planned]
    assert [capture.state for capture in captures] == ["ok", *["missing"] * len(planned)]


def test_a_report_that_nobody_said_was_closed_is_not_taken_for_the_whole_window(job):
    job.report("nsight", "policy_worker", 0, 3, 5)
    job.report("nsight", "policy_worker", 1, 3, 5, pid=101)
    job.worker("policy_worker", 0, windows=[("opened", "nsight", 3, 5, None)], last_step=3, ended=False)
    job.worker(
        "policy_worker", 1, pid=101, windows=[("opened", "nsight", 3, 5, None)], last_step=4, ended=False
    )
    found = reasons(run(job.write()))
    assert found["nsight/policy_worker/rank0/step3-4"] == (
        "truncated",
        "the window (steps 3 to 4) was cut short (last step seen: 3)",
    )
    assert found["nsight/policy_worker/rank1/step3-4"] == (
        "truncated",
        "the window (steps 3 to 4) was cut short (last step seen: 4, but not its end)",
    )


LAST = {"event": "step", "step": 4, "begin_ns": 25, "end_ns": 60, "phases": []}


@pytest.mark.parametrize(
    ("worker", "told", "written_ns", "another", "state"),
    [
        ({"last_step": 4, "ended": False}, [], 100, None, "truncated"),
        ({"last_step": 4, "ended": False}, [], 100, {"t_ns": 50}, "truncated"),  # that took its place
        ({"last_step": 4, "ended": False}, [LAST], 100, {"t_ns": 50}, "truncated"),
        ({"last_step": 4, "ended": False}, [LAST], 40, None, "truncated"),  # by nsys, when it was killed
        ({"last_step": 4, "ended": False}, [LAST], 100, None, "ok"),  # killed after its last step
        ({"last_step": 4, "ended": False}, [LAST], 0, None, "ok"),  # on storage that keeps whole seconds
        ({"last_step": 4, "ended": False}, [LAST], 100, {"t_ns": 70}, "ok"),
        ({"last_step": 4, "ended": True}, [], 100, None, "ok"),  # a tool that writes at the end
        ({"last_step": 5, "ended": False}, [], 100, None, "ok"),
    ],
)
def test_a_worker_that_was_killed_in_the_last_step_of_its_window_has_not_taken_it_whole(
    job, worker, told, written_ns, another, state
):
    window = ("opened", "nsight", 3, 5, None)
    job.worker("policy_worker", 0, windows=[window], **worker)
    report = job.report("nsight", "policy_worker", 0, 3, 5)
    os.utime(report, ns=(written_ns, written_ns))
    job.worker("driver", 0, pid=300, extra=[{"event": "leads", "by": "a trainer"}, *told])
    if another is not None:
        job.worker("policy_worker", 0, pid=200, last_step=8, **another)
    assert run(job.write()).captures[0].state == state


def test_what_came_home_in_time_is_the_capture_and_not_what_its_tool_wrote_once_more(job):
    path = job.report("nsight", "policy_worker", 0, 3, 5)
    again = path.with_name(path.name.replace(".nsys-rep", ".1.nsys-rep"))
    again.write_bytes(path.read_bytes().replace(b"[END]", bytes(64) + b"[END]"))
    job.records["n1"]["recovered"].append(str(again.relative_to(job.root)))
    job.worker("policy_worker", 0, windows=[("closed", "nsight", 3, 5, None)])
    [capture] = [
        each for each in run(job.write()).captures if each.id == "nsight/policy_worker/rank0/step3-4"
    ]
    assert (capture.state, capture.report) == ("ok", str(path.relative_to(job.root)))
    assert capture.more_reports == (str(again.relative_to(job.root)),)


def test_a_recovered_report_says_so(job):
    path = job.report("nsight", "policy_worker", 0, 3, 5)
    job.records["n1"]["recovered"].append(str(path.relative_to(job.root)))
    job.worker("policy_worker", 0, windows=[("opened", "nsight", 3, 5, None)], last_step=5)
    assert reasons(run(job.write()))["nsight/policy_worker/rank0/step3-4"][0] == "recovered"


def test_a_restarted_worker_keeps_both_reports_and_the_whole_one_counts(job):
    job.worker("policy_worker", 0, pid=100, last_step=4, ended=False)
    job.worker("policy_worker", 0, pid=200)
    bad = job.report("nsight", "policy_worker", 0, 3, 5, pid=100, data=NSYS_FRAME[:-5])
    good = job.report("nsight", "policy_worker", 0, 3, 5, pid=200)
    capture = run(job.write()).captures[0]
    assert (capture.state, capture.report, capture.more_reports) == (
        "ok",
        str(good.relative_to(job.root)),
        (str(bad.relative_to(job.root)),),
    )


def test_reports_outside_the_plan_are_listed(job):
    job.worker("policy_worker", 0)
    job.report("nsight", "policy_worker", 0, 6, 7)
    job.file("profiles/torch/controller/rank0/n1_55.123.pt.trace.json.gz", TRACE)
    assert [report.path.rsplit("/", 1)[-1] for report in run(job.write()).unplanned] == [
        "policy_worker_rank0_step6-6_n1_100.nsys-rep",
        "n1_55.123.pt.trace.json.gz",
    ]


def test_phase_mode_plans_one_report_for_each_phase_that_was_seen(tmp_path):
    job = RunFolder(
        tmp_path / "r",
        {"captures": [{"backend": "torch", "workers": ["policy_worker"], "steps": "3", "each": "phase"}]},
    )
    job.worker(
        "policy_worker",
        0,
        windows=[("closed", "torch", 3, 4, "train"), ("opened", "torch", 3, 4, "logprob")],
        last_step=3,
        ended=False,
    )
    job.report("torch", "policy_worker", 0, 3, 4, "train")
    found = {key: state for key, (state, _) in reasons(run(job.write())).items()}
    assert found == {
        "torch/policy_worker/rank0/step3-3/logprob": "missing",
        "torch/policy_worker/rank0/step3-3/train": "ok",
    }


def test_an_open_window_ends_where_the_run_ended(tmp_path):
    job = RunFolder(
        tmp_path / "r", {"captures": [{"backend": "nsight", "workers": ["policy_worker"], "steps": "6:"}]}
    )
    job.worker("policy_worker", 0, windows=[("closed", "nsight", 6, 9, None)])
    job.report("nsight", "policy_worker", 0, 6, 9)
    [capture] = run(job.write()).captures
    assert (capture.state, capture.start, capture.stop) == ("ok", 6, 9)


def test_worker_names_with_strange_characters_find_their_reports(tmp_path):
    job = RunFolder(
        tmp_path / "r", {"captures": [{"backend": "nsight", "workers": ["actor*"], "steps": "3"}]}
    )
    job.worker("actor/rollout:0", 0)
    job.report("nsight", "actor/rollout:0", 0, 3, 4)
    [capture] = run(job.write()).captures
    assert (capture.state, capture.worker) == ("ok", "actor/rollout:0")


def test_nemo_rl_names_are_dealt_to_ranks_and_said_to_be_a_guess(tmp_path):
    job = RunFolder(
        tmp_path / "r", {"captures": [{"backend": "nsight", "workers": ["*policy*"], "steps": "3:5"}]}
    )
    for node, pid in (("n1", 11), ("n2", 22)):
        job.file(f"ray/{node}/session_1/logs/nsight/dtensor_policy_worker_3:5_{pid}.nsys-rep", NSYS_FRAME)
    manifest = run(job.write())
    assert [(capture.worker, capture.rank, capture.state) for capture in manifest.captures] == [
        ("dtensor_policy_worker", 0, "ok"),
        ("dtensor_policy_worker", 1, "ok"),
    ]
    assert all(
        report.mapped_by == "guess" and "its rank is a guess" in report.warning for report in manifest.reports
    )
    assert "taken from the reports themselves" in manifest.notes[0]


def test_numbered_reports_are_the_windows_that_the_process_opened(tmp_path):
    """`nsys profile` with `repeat`: the second planned window never opened, so the second report is of the
    third.
    """
    windows = [("opened", "nsight", 3, 5, None), ("opened", "nsight", 9, 10, None)]
    job = RunFolder(
        tmp_path / "r", {"captures": [{"workers": ["policy"], "steps": "3:5,7,9"}]}, nodes=("n1",)
    )
    job.worker("policy", 0, pid=55, windows=windows, world_size=1)
    for number in (1, 2):
        job.file(f"profiles/nsight/policy/rank0/policy_rank0_n1_55.{number}.nsys-rep", NSYS_FRAME)

    manifest = run(job.write(world={"policy": 1}))

    assert [(report.start, report.stop, report.mapped_by) for report in manifest.reports] == [
        (3, 5, "event"),
        (9, 10, "event"),
    ]
    assert [capture.state for capture in manifest.captures] == ["ok", "missing", "ok"]


def test_rays_names_are_mapped_by_the_process_that_registered(job):
    job.worker("policy_worker", 0, pid=77)
    for ordinal in (1, 2):
        job.file(f"ray/n1/session_1/logs/nsight/worker_process_77.{ordinal}.nsys-rep", NSYS_FRAME)
    manifest = run(job.write())
    assert manifest.complete
    assert [(report.start, report.rank, report.mapped_by) for report in manifest.reports] == [
        (3, 0, "guess"),
        (7, 0, "guess"),
    ]


def test_reports_have_links_beside_rays_logs_under_the_names_of_nemo_rls_document(job):
    for rank, node, pid in ((0, "n1", 100), (1, "n2", 200)):  # n2 left no logs of Ray
        windows = [("closed", "nsight", start, stop, None) for start, stop in ((3, 5), (7, 8))]
        job.worker("policy_worker", rank, node=node, pid=pid, windows=windows)
        for start, stop in ((3, 5), (7, 8)):
            job.report("nsight", "policy_worker", rank, start, stop, node=node, pid=pid)
    for session in ("session_2026-01-01", "session_2026-01-02"):
        job.file(f"ray/n1/{session}/logs/raylet.out", b"")
    folder = job.write()
    manifest = run(folder)
    assert run(folder) == manifest, "a link is no report"

    links = sorted(path for path in folder.rglob("*") if path.is_symlink())
    assert [path.relative_to(folder).as_posix() for path in links] == [
        f"ray/n1/session_2026-01-02/logs/nsight/policy_worker_{steps}_100.nsys-rep"
        for steps in ("3:5", "7:8")
    ]
    assert [path.resolve().relative_to(folder.resolve()).as_posix() for path in links] == [
        report.path for report in manifest.reports if report.node == "n1"
    ]
    assert not any(os.path.isabs(os.readlink(path)) for path in links), "the folder may be moved"


def test_a_folder_of_rays_logs_that_leads_outside_gets_no_link(job, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    job.worker("policy_worker", 0, windows=[("closed", "nsight", 3, 5, None)])
    job.report("nsight", "policy_worker", 0, 3, 5)
    job.file("ray/n1/session_1/logs/raylet.out", b"")
    os.symlink(outside, job.root / "ray/n1/session_1/logs/nsight")
    run(job.write())
    assert not list(outside.iterdir())


def test_harvest_twice_gives_the_same_manifest(job):
    job.worker("policy_worker", 0)
    job.report("nsight", "policy_worker", 0, 3, 5)
    folder = job.write()
    run(folder)
    first = (folder / "manifest.json").read_bytes()
    run(folder)
    assert (folder / "manifest.json").read_bytes() == first


def test_a_second_harvest_does_not_look_again(job, monkeypatch):
    job.worker("policy_worker", 0)
    job.report("nsight", "policy_worker", 0, 3, 5)
    folder = job.write()
    run(folder)
    monkeypatch.setattr(
        "rlprof_ops.collect.harvest.verify.Checker._check", lambda self, found: pytest.fail("looked again")
    )
    run(folder)


def test_nothing_is_followed_or_written_outside_the_run_folder(job, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "policy_worker_rank0_step3-4_n1_100.nsys-rep").write_bytes(NSYS_FRAME)
    job.worker("policy_worker", 0)
    folder = job.write()
    os.makedirs(folder / "profiles/nsight/policy_worker")
    os.symlink(outside, folder / "profiles/nsight/policy_worker/rank0")
    os.symlink(outside / "target", folder / "manifest.json")
    manifest = run(folder)
    assert manifest.reports == ()
    assert sorted(os.listdir(outside)) == ["policy_worker_rank0_step3-4_n1_100.nsys-rep"]
    assert not (folder / "manifest.json").is_symlink()


def test_a_linked_cache_is_not_written_through(job, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    job.worker("policy_worker", 0)
    job.report("nsight", "policy_worker", 0, 3, 5)
    folder = job.write()
    os.symlink(outside, folder / ".harvest")
    run(folder)
    assert list(outside.iterdir()) == []


def test_hostile_node_records_and_events_do_no_harm(job):
    job.records["n1"].update(
        files=[{"path": "../../etc/passwd", "size_bytes": -1}, 7, {"path": None}],
        failed="no",
        recovered=[{}, "../x"],
    )
    job.records["n2"] = None
    job.file("nodes/n2.json", b"[1, 2")
    job.file(
        "nodes/n1/events/x.jsonl",
        b'{"event":"registered","worker":"policy_worker","rank":0,"t_ns":1}\n\xff\xfe\n[]\n{"event":"closed","backend":"nsight","steps":[3,5],"path":"../../x"}\n',
    )
    manifest = run(job.write())
    assert manifest.coverage["missing"] == 2
    assert "nodes/'n2.json' is damaged and was not read" in manifest.notes


@pytest.mark.parametrize(
    "name", [b"a\nb.nsys-rep", b"\xff.nsys-rep", b"-x.nsys-rep", b"'q\".nsys-rep", b"$(id).nsys-rep"]
)
def test_hostile_file_names_are_listed_as_they_are(job, name):
    folder = os.fsencode(job.write()) + b"/profiles/nsight/w/rank0"
    os.makedirs(folder)
    with open(folder + b"/" + name, "wb") as stream:
        stream.write(NSYS_FRAME)
    [report] = run(job.root).reports
    assert os.fsencode(report.path) == b"profiles/nsight/w/rank0/" + name


def test_a_folder_that_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(RlprofError, match=r"has no run\.json: it is not the run folder of a job"):
        harvest(tmp_path)


def test_nothing_asked_is_complete(tmp_path):
    job = RunFolder(tmp_path / "r", {"captures": []})
    assert run(job.write()).complete


def test_a_job_whose_head_died_is_over_when_the_other_nodes_say_so(job):
    job.records["n1"] = None
    job.worker("policy_worker", 0, "n2", last_step=5, ended=False)
    manifest = run(
        job.write(
            end={"cause": "running", "detail": ""},
            driver={"started_ns": 2, "ended_ns": None, "exit_code": None, "signal": None},
        )
    )
    assert (
        reasons(manifest)["nsight/policy_worker/rank0/step7-7"][1]
        == "the job lost a node (its head node n1 ended without a word; the other nodes have ended) before"
        " step 7 (last step seen: 5)"
    )
    assert manifest.notes == (
        "run.json was never finished: its head node n1 ended without a word; the other nodes have ended",
    )


@pytest.mark.parametrize(("seconds_ago", "running"), [(20, True), (400, False)])
def test_a_job_that_slurm_does_not_know_runs_while_its_head_tells_of_it(
    job, monkeypatch, tmp_path, seconds_ago, running
):
    """On the login node of another cluster that shares the storage. Slurm forgets its own after minutes."""
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:{os.environ['PATH']}")
    job.records = {}
    job.worker("policy_worker", 0, last_step=2, ended=False)
    written_ns = time.time_ns() - seconds_ago * 10**9
    job.file("state.json", job_state.JobState(written_ns, step=2).to_json().encode())
    driver = {"started_ns": 2, "ended_ns": None, "exit_code": None, "signal": None}
    manifest = run(job.write(end={"cause": "running", "detail": ""}, driver=driver))
    assert manifest.running is running
    said = reasons(manifest)["nsight/policy_worker/rank0/step3-4"][1]
    assert ("the job is still running" in said) is running, said


@pytest.mark.parametrize(
    ("shown", "code", "said", "attempt", "expected"),
    [
        ("JobId=7 JobState=RUNNING Restarts=0", 0, "", 0, ""),
        ("JobId=7 JobState=COMPLETING Restarts=0", 0, "", 0, ""),
        ("JobId=7 JobState=NODE_FAIL Restarts=0", 0, "", 0, "NODE_FAIL"),
        ("JobId=7 JobState=RUNNING Restarts=1", 0, "", 0, "REQUEUED"),
        ("JobId=7 JobState=RUNNING Restarts=1", 0, "", 1, ""),
        ("", 1, "slurm_load_jobs error: Invalid job id specified", 0, "unknown"),
        ("", 1, "Unable to contact slurm controller", 0, None),
    ],
)
def test_slurms_word_for_the_end_of_a_job(shown, code, said, attempt, expected):
    assert read_state(shown, code, said, attempt) == expected


def test_a_failed_window_whose_report_was_found_after_all_is_not_missing(job):
    path = job.report("nsight", "policy_worker", 0, 3, 5)
    job.records["n1"]["recovered"].append(str(path.relative_to(job.root)))
    windows = [
        ("opened", "nsight", 3, 5, None),
        ("failed", "nsight", 3, 5, None, {"reason": "`nsys stop` failed"}),
    ]
    job.worker("policy_worker", 0, windows=windows, last_step=3, ended=False)
    manifest = run(job.write(end={"cause": "signal", "detail": "SIGTERM"}))
    assert reasons(manifest)["nsight/policy_worker/rank0/step3-4"] == (
        "truncated",
        "the window (steps 3 to 4) was cut short (last step seen: 3): the job was stopped (SIGTERM)",
    )
