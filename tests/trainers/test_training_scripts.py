"""Scripts of Lightning and of Accelerate, unchanged, under `rlprof wrap`: steps and phases by their own
clocks, the same losses as without us, each rank's window, and the right of way of their own profilers.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.job.knobs import import_path
from tests.real_nsys import nvtx_ranges
from tests.trainers import environments
from tests.trainers.own_log import agree
from tests.trainers.test_own_profilers import YIELDED, operators, trace

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 600)]
RUN_S = 250.0
LIGHTNING, ACCELERATE = "lightning/fit.py", "accelerate/script.py"
BATCHES, MICRO_BATCHES = 16, 2  # of the scripts
Took = dict[tuple[int, str], float]
"""Step and phase -> seconds."""


@dataclass(frozen=True)
class Ran:
    """What a script printed, and what we left of it."""

    output: str
    folder: Path

    @property
    def losses(self) -> list[str]:
        return sorted(line for line in self.output.splitlines() if line.startswith("loss "))

    @property
    def manifest(self) -> Manifest:
        [found] = re.findall(r"^rlprof: .*: (/.*)/manifest.json", self.output, re.MULTILINE)[-1:]
        return Manifest.load(Path(found))

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        [log] = self.folder.rglob(f"trainer_rank{rank}_*.jsonl")
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        return [row for row in rows if row["event"] == "step"]

    def took(self) -> Took:
        found: Took = defaultdict(float)
        for row in self.steps():
            assert "cut" not in row
            for name, begin, end, _ in row["phases"]:
                assert row["begin_ns"] <= begin <= end <= row["end_ns"]
                found[row["step"], name] += (end - begin) / 1e9
        return found


def run(
    script: str,
    *words: str,
    folder: Path,
    with_us: bool,
    launcher: tuple[str, ...] = (),
    trainer: str = "lightning",
    **env: str,
) -> Ran:
    """The script in a folder of its own, wrapped or not, in the environment of `trainer`; it ends with 0."""
    if why := environments.lacking(trainer):
        pytest.skip(why)
    installed = environments.ensure(trainer)
    folder.mkdir()
    argv = [str(installed.python), *launcher, str(environments.HERE / script), *words]
    asked = {"RLPROF_STEPS": "2:4", "RLPROF_WORKERS": "trainer", "RLPROF_BACKEND": "torch"}
    wrap = [sys.executable, "-m", "rlprof_ops", "wrap", "--"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RLPROF_", "SLURM_"))}
    ours = {**asked, "PYTHONPATH": import_path()} if with_us else {"PYTHONPATH": ""}
    done = subprocess.run(
        [*wrap, *argv] if with_us else argv,
        cwd=folder,
        env={**kept, **ours, "OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return Ran(done.stdout, folder)


LOSSES: dict[tuple[str, str, str], list[str]] = {}
"""Script, kind and what else it was run with -> its losses without us, which are the same at every run."""


def both(script: str, kind: str, folder: Path, **options: Any) -> Ran:
    """With us, after its losses were compared with those without."""
    its_own = {name: value for name, value in options.items() if not name.startswith("RLPROF_")}
    key = script, kind, repr(its_own)
    if key not in LOSSES:
        LOSSES[key] = run(script, kind, folder=folder / "bare", with_us=False, **its_own).losses
    ours = run(script, kind, folder=folder / "ours", with_us=True, **options)
    assert ours.losses == LOSSES[key] and len(LOSSES[key]) >= BATCHES
    return ours


def compared(told: Took, own: Took) -> None:
    """Each phase of each step."""
    assert set(own) <= set(told)
    agree({key: (told[key], seconds) for key, seconds in own.items()})


@pytest.mark.parametrize(
    "package", ["lightning.pytorch", pytest.param("pytorch_lightning", marks=pytest.mark.long)]
)
def test_steps_and_phases_of_lightning_are_its_own_profilers(package: str, tmp_path: Path) -> None:
    ours = both(LIGHTNING, "automatic", tmp_path, LIGHTNING=package)
    told, own = ours.took(), lightnings(ours.output)
    compared(told, {key: seconds for key, seconds in own.items() if key[1] != "validation"})
    more = [told[step, "validation"] - own[step, "validation"] for step in (4, 8)]  # the last of each epoch
    assert 0 <= min(more) <= 0.05, more  # a busy machine may come between in one of them
    assert {step for step, name in told if name == "validation"} == {4, 8}
    assert [row["step"] for row in ours.steps()] == list(range(1, BATCHES // MICRO_BATCHES + 1))
    last = re.findall(r"global_step (\d+)", ours.output)[-1]
    assert int(last) == ours.steps()[-1]["step"]
    assert [(each.id, each.state) for each in ours.manifest.captures] == [
        ("torch/trainer/rank0/step2-3", "ok")
    ]


_ACTIONS = {
    "train_dataloader_next": "data", "training_step": "forward", "backward": "backward",
    "run_training_batch": "train", "val_next": "validation", "validation_step": "validation",
}  # fmt: skip


def lightnings(output: str) -> Took:
    """What Lightning's profiler measured in its loop; a validation belongs to the step before it."""
    found: Took = defaultdict(float)
    batch = validating = 0
    for line in output[output.index("timed [_TrainingEpochLoop]") :].splitlines():
        if line.startswith("global_step"):
            batch += 1
        elif measured := re.match(r"timed (\S+) ([\d.]+)", line):
            action = measured[1].rpartition(".")[2]
            validating = action.startswith(("val_", "validation_"))
            if name := _ACTIONS.get(action):
                found[(batch - validating) // MICRO_BATCHES + 1, name] += float(measured[2])
    return found


def test_a_batch_is_a_step_where_lightnings_optimizers_are_stepped_by_hand(tmp_path: Path) -> None:
    ours = both(LIGHTNING, "manual", tmp_path)
    assert [row["step"] for row in ours.steps()] == list(range(1, BATCHES + 1))
    for row in ours.steps():
        names = [name for name, *_ in row["phases"] if name in ("backward", "optimizer")]
        assert names == ["backward", "optimizer"] * 2


def test_lightning_goes_on_from_the_middle_of_an_epoch_with_the_step_that_is_next(tmp_path: Path) -> None:
    """A checkpoint of a validation there: Lightning's first turn then trains nothing."""
    bare = run(LIGHTNING, "saved", folder=tmp_path / "bare", with_us=False)
    ours = run(LIGHTNING, "saved", str(bare.folder / "step=2.ckpt"), folder=tmp_path / "ours", with_us=True)
    last = BATCHES // MICRO_BATCHES
    assert [row["step"] for row in ours.steps()] == list(range(3, last + 1))
    assert len(ours.losses) == MICRO_BATCHES * (last - 2)


def test_each_rank_of_lightnings_own_launcher_has_its_window(tmp_path: Path) -> None:
    ours = both(LIGHTNING, "ddp", tmp_path)
    windows = {each.id: each.state for each in ours.manifest.captures}
    assert windows == {f"torch/trainer/rank{rank}/step2-3": "ok" for rank in range(2)}
    assert [row["step"] for row in ours.steps(0)] == list(range(1, BATCHES // MICRO_BATCHES + 1))


NSIGHT = {"RLPROF_BACKEND": "nsight", "RLPROF_OPTIONS": '{"t": "nvtx"}'}


@pytest.mark.long
@pytest.mark.nsys
def test_each_rank_of_lightnings_own_launcher_has_a_session_of_its_own(tmp_path: Path) -> None:
    """The first rank is under nsys when it starts the second one: each report is of its own process alone."""
    ours = both(LIGHTNING, "ddp", tmp_path, **NSIGHT)
    windows = {each.id: (each.state, each.reason) for each in ours.manifest.captures}
    assert {name: state for name, (state, _) in windows.items()} == {
        f"nsight/trainer/rank{rank}/step2-3": "ok" for rank in range(2)
    }, windows
    for rank in range(2):
        [report] = ours.folder.rglob(f"trainer_rank{rank}_*.nsys-rep")
        names = Counter(nvtx_ranges(report, tmp_path))
        assert (names["step 2"], names["step 3"], names["forward"]) == (1, 1, 2 * MICRO_BATCHES), (
            rank,
            names,
        )


def test_steps_and_phases_of_an_accelerate_script_are_its_own_clocks(tmp_path: Path) -> None:
    ours = both(ACCELERATE, "accumulated", tmp_path)
    told, own = ours.took(), timed(ours.output)
    compared(told, own)
    steps = ours.steps()
    assert [row["step"] for row in steps] == list(range(1, BATCHES // MICRO_BATCHES + 1))
    assert f"{len(steps)} steps" in ours.output
    data = [told[step, "data"] for step in (2, 3, 6, 7)]  # two batches of four samples of 5 ms
    assert min(data) >= 0.04 and statistics.median(data) < 0.2, data
    [heard] = ours.manifest.heard.values() if isinstance(ours.manifest.heard, dict) else [ours.manifest.heard]
    assert "accelerate" in str(heard)
    assert [(each.id, each.state) for each in ours.manifest.captures] == [
        ("torch/trainer/rank0/step2-3", "ok")
    ]


def timed(output: str) -> Took:
    found: Took = defaultdict(float)
    for phase, step, seconds in re.findall(r"^timed (\w+) (\d+) ([\d.]+)", output, re.MULTILINE):
        found[int(step), phase] += float(seconds)
    return found


@pytest.mark.parametrize(("kind", "steps"), [("plain", BATCHES), ("unprepared", BATCHES // MICRO_BATCHES)])
def test_accelerate_without_accumulate_or_without_its_loaders(kind: str, steps: int, tmp_path: Path) -> None:
    ours = both(ACCELERATE, kind, tmp_path)
    assert [row["step"] for row in ours.steps()] == list(range(1, steps + 1))
    own = {key: seconds for key, seconds in timed(ours.output).items() if key[1] != "forward"}
    compared(ours.took(), own)


def test_each_rank_of_an_accelerate_script_under_torchrun_has_its_window(tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ours = both(ACCELERATE, "accumulated", tmp_path, launcher=launcher)
    windows = {each.id: each.state for each in ours.manifest.captures}
    assert windows == {f"torch/trainer/rank{rank}/step2-3": "ok" for rank in range(2)}


def test_each_rank_of_a_trl_script_under_torchrun_has_its_window(tmp_path: Path) -> None:
    if why := environments.lacking("trl"):
        pytest.skip(why)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    model = str(environments.ensure("trl").data / "model")
    ours = run("trl/tuning.py", model, "4", "bare", folder=tmp_path / "trl", with_us=True, launcher=launcher,
               trainer="trl", HF_HUB_OFFLINE="1")  # fmt: skip
    windows = {each.id: each.state for each in ours.manifest.captures}
    assert windows == {f"torch/trainer/rank{rank}/step2-3": "ok" for rank in range(2)}
    assert "accelerate" not in str(ours.manifest.heard)  # its Accelerator is the trainer's


@pytest.mark.parametrize("script", [LIGHTNING, ACCELERATE])
def test_their_own_profiler_has_the_right_of_way(script: str, tmp_path: Path) -> None:
    """It begins before our window and ends in it or behind it: theirs is whole, ours says why it is not."""
    ours = both(script, "profiled", tmp_path)
    mine, theirs = (traces(tmp_path / name / "own") for name in ("ours", "bare"))
    assert mine == theirs and min(theirs) > 0
    [capture] = ours.manifest.captures
    assert capture.state in ("missing", "truncated") and YIELDED in capture.reason


def traces(folder: Path) -> list[int]:
    """The operators in each trace, in the order in which they were written."""
    written = sorted(folder.glob("*.json*"), key=lambda path: path.stat().st_mtime_ns)
    return [operators(trace(path)) for path in written]
