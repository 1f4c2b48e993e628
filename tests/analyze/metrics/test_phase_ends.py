"""A phase lasts until its GPU work is done; where no step is known, none is explained."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.output.test_answer import check_sums, validate
from tests.analyze.shared import kernel, launch, mark, real, write_trace


def test_a_pass_of_an_engine_lasts_until_its_kernels_are_done(tmp_path: Path) -> None:
    """As in a trace of vLLM's on an MI300: the host is done with it after 26 ms, the GPU at 308."""
    events = [mark("execute_context_9(sq8155sk8430)_generation_37(sq37sk13000)", 0, 26_353)]
    for number in range(100):
        events += [
            launch(2_000 + 240 * number, number + 1),
            kernel("k", 151_000 + 1_570 * number, 1_570, correlation=number + 1),
        ]
    write_trace(tmp_path / "r.json", events)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    [row] = answer["anatomy"]
    assert row["phases"][0]["duration_ns"] == row["duration_ns"] == 308_000_000
    assert row["phases"][0]["gpu"]["busy_ns"] == row["gpu"]["busy_ns"] == 157_000_000
    assert not {"uncaptured", "unexplained", "host"} & {each["kind"] for each in answer["findings"]}


def test_a_gap_is_the_hosts_until_the_launch_has_returned(tmp_path: Path) -> None:
    """SGLang's own trace on an MI300: kernels launched in the first millisecond begin after 463."""
    shutil.copy(real("torch/sglang_qwen3_8b_decode.json.gz"), tmp_path / "r.json.gz")
    [row] = answer_of(tmp_path, jobs=1, cache=False)["anatomy"]
    assert row["gpu_idle"]["host_ns"] < 5_000_000 < 460_000_000 < row["gpu_idle"]["queued_ns"]


@pytest.mark.parametrize("name", ["sglang_qwen3_8b_decode", "sampled_rank-0"])
def test_what_marks_no_step_or_hardly_a_phase_has_no_chain(name: str, tmp_path: Path) -> None:
    shutil.copy(real(f"torch/{name}.json.gz"), tmp_path / "r.json.gz")
    answer = answer_of(tmp_path, jobs=1, cache=False)
    assert answer["critical_path"]["untold"] and not answer["critical_path"]["steps"] + answer["what_if"]


def test_another_phase_or_the_end_of_the_step_ends_it_before(tmp_path: Path) -> None:
    work = [
        (1_000, 1_000, 30_000),
        (60_000, 60_000, 20_000),
        (95_000, 96_000, 20_000),
    ]  # asked, begins, takes
    events = [mark("step 3", 0, 100_000), mark("generation", 0, 10_000), mark("train", 20_000, 45_000)]
    events.append(mark("reward", 94_000, 2_000))
    for number, (asked, begins, takes) in enumerate(work, 1):
        events += [launch(asked, number), kernel("k", begins, takes, correlation=number)]
    write_trace(tmp_path / "r.json", events)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    validate(answer)
    check_sums(answer)
    names = answer["phase_names"]
    took = {names[p["phase"]]: p["duration_ns"] for p in answer["anatomy"][0]["phases"]}
    assert took == {"generation": 20_000_000, "train": 60_000_000, "reward": 6_000_000}
