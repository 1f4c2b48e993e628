"""One physical GPU is one timeline, whatever number each process gives it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.nsys_exports import MS, UTC, Process, Work, two_phases, write_export
from tests.analyze.output.test_answer import check_sums, validate
from tests.analyze.shared import kernel, mark, write_trace, x

GPU_A, GPU_B = "GPU-aaaaaaaa", "GPU-bbbbbbbb"


def working(pid: int, phase: str, begin: int, gpus: dict[int, str], device: int = 0) -> Process:
    """A step of 40 ms with one phase of 15 ms from `begin`, in it ten kernels of 1 ms."""
    work = [
        Work(
            "k",
            begin + i * 1_500_000,
            begin + i * 1_500_000 + 1000,
            begin + i * 1_500_000 + 1_001_000,
            i + 1,
            device,
        )
        for i in range(10)
    ]
    return Process(pid, (("step 3", 0, 40 * MS), (phase, begin, begin + 15 * MS)), tuple(work), gpus)


def answered(folder: Path, **workers: tuple[Process, ...]) -> dict[str, Any]:
    for worker, processes in workers.items():
        for rank, process in enumerate(processes):
            place = folder / "profiles" / "nsight" / worker / f"rank{rank}"
            place.mkdir(parents=True)
            report = place / f"{worker}_rank{rank}_step3-3_n0_{process.pid}.nsys-rep"
            report.write_bytes(b"x")
            write_export(report.with_suffix(".sqlite"), process)
    answer = answer_of(folder, jobs=1)
    validate(answer)
    check_sums(answer)
    again = answer_of(folder, jobs=1)  # from the cached columns
    assert again["shared_gpus"] == answer["shared_gpus"] and again["gpu"] == answer["gpu"]
    return answer


def test_two_processes_on_one_gpu_take_turns(tmp_path: Path) -> None:
    """Each calls it by another number. Nobody stands idle while the other works: it could not work."""
    answer = answered(
        tmp_path,
        policy_worker=(working(100, "train", 20 * MS, {0: GPU_A}),),
        vllm_worker=(working(200, "generation", 2 * MS, {0: GPU_B, 1: GPU_A}, device=1),),
    )
    (gpu,) = answer["shared_gpus"]
    assert gpu["uuid"] == GPU_A and sorted(gpu["ranks"]) == [0, 1] and gpu["doubt_ns"] == 0
    window = (20 * MS + 9 * 1_500_000 + 1_001_000) - (2 * MS + 1000)
    assert (gpu["window_ns"], gpu["busy_ns"], gpu["idle_ns"]) == (window, 20 * MS, window - 20 * MS)
    assert not [f for f in answer["findings"] if f["kind"] == "bubble"] and answer["bubbles"] == []


def test_two_processes_that_work_at_once_are_busy_once(tmp_path: Path) -> None:
    answer = answered(
        tmp_path,
        policy_worker=(working(100, "train", 2 * MS, {0: GPU_A}),),
        vllm_worker=(working(200, "generation", 2 * MS + 500_000, {0: GPU_A}),),
    )
    (gpu,) = answer["shared_gpus"]
    # ten kernels of 1 ms every 1.5 ms, the other ten half a millisecond later: together without a gap
    assert (gpu["window_ns"], gpu["busy_ns"], gpu["idle_ns"]) == (15 * MS, 15 * MS, 0)


def test_device_0_of_two_processes_may_be_two_gpus(tmp_path: Path) -> None:
    """`CUDA_VISIBLE_DEVICES` makes each of them 0: nothing is shared, and each waits for the other."""
    answer = answered(
        tmp_path,
        policy_worker=(working(100, "train", 20 * MS, {0: GPU_A}),),
        vllm_worker=(working(200, "generation", 2 * MS, {0: GPU_B}),),
    )
    assert answer["shared_gpus"] == []
    assert {b["worker"] for b in answer["bubbles"]} == {"policy_worker", "vllm_worker"}
    assert [(row["uuid"], row["busy_ns"]) for row in answer["gpu"]] == [(GPU_A, 10 * MS), (GPU_B, 10 * MS)]


def test_one_gpu_under_two_numbers_of_one_process_is_one(tmp_path: Path) -> None:
    half = working(100, "train", 2 * MS, {0: GPU_A, 1: GPU_A}).work
    work = tuple(Work(w.name, w.asked, w.start, w.end, w.correlation, i % 2) for i, w in enumerate(half))
    ranges = (("step 3", 0, 40 * MS), ("train", 2 * MS, 17 * MS))
    answer = answered(tmp_path, policy_worker=(Process(100, ranges, work, {0: GPU_A, 1: GPU_A}),))
    (row,) = answer["gpu"]
    assert row["busy_ns"] == 10 * MS and row["idle_ns"] == row["window_ns"] - 10 * MS
    assert answer["anatomy"][0]["gpu"]["window_ns"] == 40 * MS


def test_two_processes_in_one_report_share_their_gpu(tmp_path: Path) -> None:
    place = tmp_path / "profiles" / "nsight" / "w" / "rank0"
    place.mkdir(parents=True)
    report = place / "w_rank0_step3-3_n0_100.nsys-rep"
    report.write_bytes(b"x")
    a = two_phases(100, "train", "generation", gpus={0: GPU_A})
    b = two_phases(200, "train", "generation", gpus={0: GPU_A})
    write_export(report.with_suffix(".sqlite"), a, b)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    (gpu,) = answer["shared_gpus"]
    assert {gpu["busy_ns"]} == {row["busy_ns"] for row in answer["gpu"]}  # both at the same time
    assert len(answer["gpu"]) == 2 and gpu["idle_ns"] == answer["gpu"][0]["idle_ns"]


def taking_turns(
    folder: Path,
    seed: int,
    gpus: tuple[dict[str, int], ...],
    hosts: tuple[str, str] = ("n0", "n0"),
    **header: Any,
) -> dict[str, Any]:
    """Torch traces of a policy and an engine that take turns, in steps of about 40 ms; header by process."""
    rng = random.Random(seed)
    for pid, (worker, phase, begin) in enumerate(
        (("policy_worker", "train", 20_000), ("vllm_worker", "generation", 2_000))
    ):
        events = []
        for step in (3, 4, 5):
            at = 40_000 * (step - 3)
            long = 14_000 + rng.randrange(2_000)
            events += [mark(f"step {step}", at, 40_000), mark(phase, at + begin, long)]
            events += [kernel("k", at + begin + 100, long - 200, device=gpus[pid].get("device", 0))]
        write_trace(
            folder
            / "profiles"
            / "torch"
            / worker
            / "rank0"
            / f"{worker}_rank0_step3-5_{hosts[pid]}_{pid}.pt.trace.json.gz",
            [event | {"pid": event["pid"] if event["cat"] == "kernel" else pid} for event in events],
            None,
            UTC,
            host_name=hosts[pid],
            deviceProperties=[{"id": i, "name": "NVIDIA H100"} for i in range(gpus[pid].get("visible", 1))],
            **{name: values[pid] for name, values in header.items()},
        )
    return answer_of(folder, jobs=1, cache=False)


def test_nobody_stands_idle_where_two_processes_may_be_on_one_gpu(tmp_path: Path) -> None:
    """Thirty seeds: that it cannot be told is said, and how to tell it, and it is no first finding."""
    for seed in range(30):
        answer = taking_turns(tmp_path / str(seed), seed, ({}, {}))
        assert answer["bubbles"] == []
        (found,) = [f for f in answer["findings"] if f["kind"] == "untold_gpus"]
        assert found is answer["findings"][-1] and len(answer["findings"]) > 1
        assert found["text"].startswith(
            "Whether policy_worker and vllm_worker share GPUs of n0 cannot be told"
        )
        assert 'add_metadata_json("rlprof_gpus"' in found["advice"]


@pytest.mark.parametrize(
    ("gpus", "more"),
    [
        (({"visible": 8}, {"visible": 8, "device": 1}), {}),
        (({}, {}), {"hosts": ("n0", "n1")}),
        (({}, {}), {"rlprof_gpus": ({"0": GPU_A}, {"0": GPU_B})}),
    ],
)
def test_what_tells_gpus_apart_is_used(tmp_path: Path, gpus: Any, more: dict[str, Any]) -> None:
    """Their numbers where each process sees all eight, their hosts, their UUIDs."""
    answer = taking_turns(tmp_path, 0, gpus, **more)
    assert {b["worker"] for b in answer["bubbles"]} == {"policy_worker", "vllm_worker"}
    assert not [f for f in answer["findings"] if f["kind"] == "untold_gpus"]


def test_a_uuid_of_one_process_alone_tells_nothing(tmp_path: Path) -> None:
    answer = taking_turns(tmp_path, 0, ({}, {}), rlprof_gpus=({"0": GPU_A}, {}))
    assert answer["bubbles"] == [] and answer["findings"][-1]["kind"] == "untold_gpus"


def test_torch_traces_that_tell_their_gpu_share_it_with_those_of_nsys(tmp_path: Path) -> None:
    """The recorder writes the UUID as CUDA does, nsys may write it as nvidia-smi does."""
    place = tmp_path / "profiles" / "torch" / "vllm_worker" / "rank0"
    write_trace(
        place / "vllm_worker_rank0_step3-3_n0_200.pt.trace.json.gz",
        [
            mark("step 3", 0, 40_000) | {"pid": 200},
            mark("generation", 20_000, 17_000) | {"pid": 200},
            x("cpu_op", "aten::mm", 20_000, 5, 200),
            kernel("b", 20_100, 10_000),
        ],
        None,
        UTC,
        host_name="n0",
        rlprof_gpus={"0": GPU_A.removeprefix("GPU-")},
    )
    answer = answered(tmp_path, policy_worker=(working(100, "train", 2 * MS, {0: GPU_A}),))
    (gpu,) = answer["shared_gpus"]
    assert sorted(gpu["ranks"]) == [0, 1] and answer["bubbles"] == []
