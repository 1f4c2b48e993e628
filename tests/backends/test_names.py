"""File names of reports, there and back, also for names that other trainers write."""

from types import SimpleNamespace

import pytest

from rlprof_ops import backends
from rlprof_ops.backends import report_names


def window(start, stop):
    return SimpleNamespace(start=start, stop=stop)


@pytest.mark.parametrize(
    ("worker", "phase", "host", "stop"),
    [
        ("policy_worker", None, "gpu-012.cluster", 5),
        ("vllm_rank2_step1-2", "ref_logprob", "n1", 5),
        ("a", "train", "h", None),
    ],
)
def test_a_report_name_reads_back(worker, phase, host, stop):
    name = report_names.report_name(worker, 3, window(3, stop), phase, host, 4711, ".pt.trace.json.gz")

    found = report_names.parse(name)

    assert found == report_names.ReportName(
        "rlprof", ".pt.trace.json.gz", worker, 3, 3, stop, phase and report_names.safe(phase), host, 4711
    )


def test_a_window_that_opened_by_itself_is_named_after_its_trigger():
    identity = report_names.triggered_id("slow_rank", 15, 1)
    name = report_names.report_name(
        "policy_worker", 1, window(16, 17), None, "n2", 4711, ".nsys-rep", identity
    )

    assert name == "policy_worker_rank1_step16-16_when-slow-rank_n2_4711.nsys-rep"
    found = report_names.parse(name)
    assert (found.trigger, found.phase, found.start, found.host) == ("slow-rank", None, 16, "n2")
    assert report_names.trigger_of("20260101-slow") is None


def test_a_report_name_is_the_documented_one():
    assert (
        report_names.report_name(
            "dtensor_policy_worker", None, window(3, 5), None, "gpu012", 48213, ".nsys-rep"
        )
        == "dtensor_policy_worker_rank0_step3-4_gpu012_48213.nsys-rep"
    )


@pytest.mark.parametrize("hostile", ["../../etc", "a b;rm -rf $HOME", "x\ny", ".hidden", "..", "wörker:0"])
def test_no_name_leaves_its_folder_or_needs_quoting(hostile):
    name = report_names.report_name(hostile, 0, window(1, 2), hostile, hostile, 1, ".nsys-rep")
    folder = report_names.report_folder("nsight", hostile, 0)

    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert not name.startswith(".")
    assert ".." not in folder.parts and len(folder.parts) == 4


@pytest.mark.parametrize(
    ("filename", "kind", "fields"),
    [
        (
            "dtensor_policy_worker_3:5_812.nsys-rep",
            "nemo_rl",
            {"worker": "dtensor_policy_worker", "start": 3, "stop": 5, "pid": 812},
        ),
        ("vllm_tp_worker_3:5_812.2.nsys-rep", "vllm", {"worker": "vllm_tp_worker", "pid": 812, "ordinal": 2}),
        ("worker_process_48213.3.nsys-rep", "ray", {"pid": 48213, "ordinal": 3}),
        ("rlinf_profile_ActorGroup_0_99.nsys-rep", "rlinf", {"worker": "ActorGroup", "rank": 0, "pid": 99}),
        ("prof_rank-7.json.gz", "verl", {"rank": 7}),
        ("torch_memory_rank1_pid5.pickle", "verl", {"rank": 1, "pid": 5}),
        ("nsys-report-3fc7.qdstrm", "nsys", {}),
        ("gpu1_77.1690000000000.pt.trace.json", "torch", {"host": "gpu1", "pid": 77}),
    ],
)
def test_other_tools_names_are_recognised(filename, kind, fields):
    found = report_names.parse(filename)

    assert found is not None and found.kind == kind
    assert {key: getattr(found, key) for key in fields} == fields


@pytest.mark.parametrize("filename", ["train.log", "x.nsys-rep", "model.safetensors", ""])
def test_what_is_no_report_is_not_recognised(filename):
    assert report_names.parse(filename) is None


@pytest.mark.parametrize(
    ("filename", "kind", "worker", "rank", "start", "ordinal"),
    [
        ("policy_worker_rank3_n1_12.2.nsys-rep", "rlprof", "policy_worker", 3, None, 2),
        ("policy_worker_rank3_step3-4_n1_12.1.nsys-rep", "rlprof", "policy_worker", 3, 3, 1),
        ("worker_process_rank3_n1_12.nsys-rep", "ray", None, 3, None, None),
        ("policy_rank0_step3-4_n1_12_perfetto-trace.proto", "rlprof", "policy", 0, 3, None),
        ("policy_rank0_n1_12_perfetto-trace-12.proto", "rlprof", "policy", 0, None, None),
    ],
)
def test_names_of_reports_that_a_tool_writes_itself(filename, kind, worker, rank, start, ordinal):
    found = report_names.parse(filename)

    assert (found.kind, found.worker, found.rank, found.start, found.ordinal) == (
        kind,
        worker,
        rank,
        start,
        ordinal,
    )
    assert (found.host, found.pid) == ("n1", 12)


@pytest.mark.parametrize("suffix", [end for each in backends.every() for end in each.suffixes])
def test_the_reports_of_every_backend_are_split_at_the_right_dot(suffix):
    name = report_names.report_name("policy_worker", 3, window(3, 5), None, "node-7", 4711, suffix)
    found = report_names.parse(name)
    assert found is not None and (found.suffix, found.worker, found.pid) == (suffix, "policy_worker", 4711)
