"""The comparison of two runs: what is a change, what is noise, and the rules that fail a build."""

from __future__ import annotations

import json
import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")
pytest.importorskip("rich")
from click.testing import CliRunner
from tests.analyze.as_data import typed
from tests.analyze.fake_run import make_run
from tests.analyze.shared import kernel, mark, real, write_trace
from tests.analyze.simulated import simulated_answer
from tests.bench.diff import simulate

from rlprof_ops.analyze.output.diff_text import show
from rlprof_ops.analyze.output.diff_workers import matched
from rlprof_ops.analyze.output.run_diff import Diff, compare, describe, parse_rule, unjudged, violations
from rlprof_ops.analyze.reporting import load_answer
from rlprof_ops.commands.diff import command
from rlprof_ops.errors import UsageError


def compared(before: dict[str, Any], after: dict[str, Any]) -> Diff:
    return compare(typed(before), typed(after))


def slower(answer: dict[str, Any], phase: str, factor: float) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(answer))
    number = changed["phase_names"].index(phase)
    for row in changed["anatomy"]:
        for part in row["phases"]:
            if part["phase"] == number:
                part["duration_ns"] = round(part["duration_ns"] * factor)
    for row in changed["kernels"]:
        if row["name"].startswith("kernel_39"):
            row["total_ns"] *= 2
    return changed


def test_a_phase_that_got_slower_is_found_and_nothing_else() -> None:
    before = simulated_answer(8, 8)
    diff = compared(before, slower(before, "train", 1.1))
    assert [c.what for c in diff.phases if c.real] == ["policy_worker/train"]
    change = diff.phases[0]
    assert (
        change.share == pytest.approx(0.1, abs=0.005) and change.noise_ns is not None and change.noise_ns > 0
    )
    assert not diff.step.real
    assert {k.what.partition(": ")[2].partition(" ")[0] for k in diff.kernels} == {"kernel_39"}


def test_one_step_tells_nothing_and_says_so() -> None:
    before = simulated_answer(4, 1)
    diff = compared(before, slower(before, "train", 2.0))
    assert not any(c.real for c in diff.phases)
    assert "noise is not known" in diff.notes[0]


@pytest.mark.parametrize(
    ("rule", "broken"),
    [("train>5%", True), ("train>15%", False), ("policy_worker/train>1ms", True), ("train>1s", False), ("step>0.1%", False),
     ("ref_logprob>0%", False), ("missing>0", False), ("stragglers>0", False)],
)  # fmt: skip
def test_rules(rule: str, broken: bool) -> None:
    before = simulated_answer(8, 8)
    diff = compared(before, slower(before, "train", 1.1))
    assert bool(violations([parse_rule(rule, diff)], diff)) is broken


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("step", "write WHAT>LIMIT"),
        ("stpe>5%", "Did you mean 'step'?"),
        ("step>5", "takes a limit in %"),
        ("missing>5%", "takes a bare number"),
        ("step>1.2.3%", "is no number"),
    ],
)
def test_rules_that_say_nothing_are_refused(rule: str, said: str) -> None:
    answer = simulated_answer(4, 2)
    with pytest.raises(UsageError) as error:
        parse_rule(rule, compared(answer, answer))
    assert said in str(error.value)


def test_command_on_run_folders_and_report_json(tmp_path: Path) -> None:
    make_run(tmp_path / "a", ranks=3)
    make_run(tmp_path / "b", ranks=3, slow_rank=1)
    result = CliRunner().invoke(command, [str(tmp_path / "a"), str(tmp_path / "b"), "-j", "1"])
    assert result.exit_code == 0, result.output
    assert "New straggler: policy_worker rank 1 in train" in result.output
    hostile, page = "<b>a", tmp_path / "sub" / "diff.html"
    (tmp_path / "a").rename(tmp_path / hostile)
    command_line = [str(tmp_path / hostile), str(tmp_path / "b"), "--page"]
    asked = CliRunner().invoke(command, [*command_line, str(page)])
    assert "sub/diff.html: cannot be written" in str(asked.exception)
    page.parent.mkdir()
    assert CliRunner().invoke(command, [*command_line, str(page)]).exit_code == 0
    shown = page.read_text()
    assert "<script" not in shown and hostile not in shown and "&lt;b&gt;a" in shown
    assert shown.count('class="lane"') == 4 and "new: policy_worker rank 1 in train" in shown
    (tmp_path / hostile).rename(tmp_path / "a")
    failed = CliRunner().invoke(
        command, [str(tmp_path / "a"), str(tmp_path / "b"), "-j", "1", "--fail-if", "stragglers>0", "--json"]
    )
    assert failed.exit_code == 1
    assert "failed stragglers>0: 1 new straggler" in failed.output


@cache
def _template(steps: int) -> dict[str, Any]:
    return simulated_answer(2, steps)


def run_of(seed: int, steps: int, noise: float = 0.05, drop: str = "") -> dict[str, Any]:
    """An answer whose steps and phases vary by chance, step by step; ranks of a worker vary together."""
    rng = random.Random(seed)
    whole = _template(steps)
    answer = whole | json.loads(json.dumps({key: whole[key] for key in ("steps", "anatomy")}))
    for step in answer["steps"]:
        factors = [1 + rng.gauss(0, noise) for _ in answer["phase_names"]]
        step["duration_ns"] = round(step["duration_ns"] * (1 + rng.gauss(0, noise)))
        for row in answer["anatomy"]:
            if row["step"] == step["step"]:
                for part in row["phases"]:
                    part["duration_ns"] = round(part["duration_ns"] * factors[part["phase"]])
    if drop:
        gone = {i for i, rank in enumerate(answer["ranks"]) if rank["worker"] == drop}
        answer["anatomy"] = [row for row in answer["anatomy"] if row["rank"] not in gone]
    return answer


@pytest.mark.parametrize("steps", [2, 3, 5, 20])
def test_equal_runs_do_not_differ(steps: int) -> None:
    """Two of a hundred pairs at most, over everything that is compared: with 150 pairs, 8 is three sigma."""
    false = 0
    for pair in range(150):
        diff = compared(run_of(2 * pair, steps), run_of(2 * pair + 1, steps))
        false += diff.step.real or any(c.real for c in diff.phases)
    assert false <= 8


@pytest.mark.parametrize(("steps", "rho"), [(6, 0.8), (20, 0.5), (20, 0.8)])
def test_equal_runs_whose_steps_are_alike_do_not_differ(steps: int, rho: float) -> None:
    """Two of a hundred pairs at most: of 30, four is above three sigma. It was a quarter to five sixths."""
    assert simulate("each", steps, rho, pairs=30, slower=0).false * 30 <= 3


def test_a_loop_that_is_a_tenth_slower_is_found_where_steps_are_alike() -> None:
    found = simulate("each", 20, 0.5, pairs=0, slower=20)
    assert found.anything >= 0.9 and found.step >= 0.4


def test_power_and_how_many_more_steps_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = run_of(1, 6, 0.04), run_of(2, 6, 0.04)
    diff = compared(before, longer_steps(after, 1.05))
    step = diff.step
    assert step.verdict == "noise" and step.power is not None and 0 < step.power < 0.9
    assert step.more_steps is not None and 5 < step.more_steps < 500
    show(diff, "a", "b")
    said = " ".join(capsys.readouterr().out.split())
    assert f"capture about {step.more_steps} more steps in each run" in said
    assert f"found in {100 * step.power:.0f} of 100" in said
    sure = compared(run_of(1, 50, 0.01), run_of(2, 50, 0.01)).step
    assert sure.power == 1.0 and sure.to_dict()["power"] == 1.0


def test_with_the_steps_that_were_asked_for_the_change_is_found() -> None:
    row = compared(run_of(1, 6, 0.04), longer_steps(run_of(2, 6, 0.04), 1.05)).step
    assert row.more_steps is not None and row.share is not None
    steps, factor = 6 + row.more_steps, 1 + row.share
    found = [
        compared(run_of(seed, steps, 0.04), longer_steps(run_of(seed + 1, steps, 0.04), factor)).step.real
        for seed in range(10, 20, 2)
    ]
    assert sum(found) >= 4


def longer_steps(answer: dict[str, Any], factor: float) -> dict[str, Any]:
    for row in answer["steps"]:
        row["duration_ns"] = round(row["duration_ns"] * factor)
    return answer


def test_warming_up_is_no_noise_and_is_said() -> None:
    """Its first step compiles: four times as long, in the first run alone."""
    before, after = run_of(1, 8, 0.02), run_of(2, 8, 0.02)
    before["steps"][0]["duration_ns"] *= 4
    diff = compared(before, after)
    assert diff.step.verdict == "noise" and abs(diff.step.share or 1) < 0.05
    assert "before: the first step took" in diff.notes[0] and "warm-up" in diff.notes[0]


def test_a_large_change_is_found_with_five_steps() -> None:
    found = 0
    for pair in range(20):
        diff = compared(run_of(2 * pair, 5, 0.02), slower(run_of(2 * pair + 1, 5, 0.02), "train", 1.2))
        found += "policy_worker/train" in {c.what for c in diff.phases if c.real}
    assert found >= 18


def test_a_worker_that_was_not_captured_is_not_faster() -> None:
    diff = compared(run_of(1, 5), run_of(2, 5, drop="policy_worker"))
    said = {c.what: c for c in diff.phases}
    assert said["policy_worker/train"].verdict == "not captured after"
    assert said["policy_worker/train"].share is None and not said["policy_worker/train"].real
    assert "was not captured after" in describe(said["policy_worker/train"])
    assert violations([parse_rule("train>0%", diff)], diff) == []
    assert unjudged([parse_rule("train>0%", diff)], diff) == [
        "train>0%: policy_worker/train was not captured after"
    ]


def without_steps(answer: dict[str, Any]) -> dict[str, Any]:
    """A run of which only the record is left: all its windows failed."""
    return answer | {"steps": [], "anatomy": [], "phases": [], "kernels": [], "stragglers": []}


@pytest.mark.parametrize("rule", ["step>5%", "step>20ms", "stragglers>0"])
@pytest.mark.parametrize("empty", ["before", "after", "before or after"])
def test_a_run_without_steps_is_not_judged(rule: str, empty: str) -> None:
    runs = {
        side: without_steps(run_of(1, 5)) if side in empty.split() else straggling(run_of(1, 5))
        for side in ("before", "after")
    }
    diff = compared(runs["before"], runs["after"])
    assert violations([parse_rule(rule, diff)], diff) == []
    assert unjudged([parse_rule(rule, diff)], diff) == [f"{rule}: there is no step {empty}"]


def straggling(answer: dict[str, Any]) -> dict[str, Any]:
    row = {
        "rank": 0, "phase": "train", "excess_ns": 9, "share_of_phase": 0.1, "steps": 5, "steps_slower": 5, "noise_ns": 1,
        "others": 1, "cost_ns": 9,
    }  # fmt: skip
    return answer | {"stragglers": [row]}


def test_two_runs_without_steps_do_not_have_a_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    diff = compared(without_steps(run_of(1, 5)), without_steps(run_of(2, 5)))
    show(diff, "a", "b")
    assert diff.step.verdict == "in neither" and "A step is in neither run." in capsys.readouterr().out


def test_the_command_ends_with_4_where_a_run_has_no_steps(tmp_path: Path) -> None:
    for name, answer in (("a", run_of(1, 5)), ("b", without_steps(run_of(1, 5)))):
        (tmp_path / f"{name}.json").write_text(json.dumps(answer))
    runs = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    run = CliRunner().invoke(command, [*runs, "--fail-if", "step>5%"])
    assert run.exit_code == 4 and "not judged step>5%: there is no step after" in run.stderr
    assert CliRunner().invoke(command, [*runs, "--fail-if", "missing>0"]).exit_code == 0


@pytest.mark.parametrize(
    ("sides", "rule", "broken", "reason"),
    [
        ("came", "train>5%", False, "there is no policy_worker/train before"),
        ("came", "train>1ms", True, ""),
        ("went", "train>5%", False, "there is no policy_worker/train after"),
        ("went", "train>1ms", False, ""),
        ("was nothing", "train>5%", False, "policy_worker/train took no time before"),
        ("was nothing", "train>1ms", True, ""),
    ],
)
def test_of_a_phase_that_is_in_one_run_no_share_is_judged(
    sides: str, rule: str, broken: bool, reason: str
) -> None:
    whole = run_of(1, 5)
    other = json.loads(json.dumps(run_of(2, 5)))
    number = other["phase_names"].index("train")
    for row in other["anatomy"]:
        row["phases"] = [
            part if part["phase"] != number else part | {"duration_ns": 0}
            for part in row["phases"]
            if part["phase"] != number or sides == "was nothing"
        ]
    diff = compared(whole, other) if sides == "went" else compared(other, whole)
    rules = [parse_rule(rule, diff)]
    assert bool(violations(rules, diff)) is broken
    assert unjudged(rules, diff) == ([f"{rule}: {reason}"] if reason else [])


def test_one_step_is_not_called_noise(capsys: pytest.CaptureFixture[str]) -> None:
    before = simulated_answer(4, 1)
    after = json.loads(json.dumps(before))
    after["steps"][0]["duration_ns"] *= 2
    diff = compared(before, after)
    show(diff, "a", "b")
    said = " ".join(capsys.readouterr().out.split())
    assert "with a single step this cannot be told from chance" in said
    assert "within the noise" not in said and "single step" in diff.notes[0]
    assert unjudged([parse_rule("step>5%", diff)], diff)[0].endswith("its noise is not known")


def test_one_worker_a_side_is_the_same_worker(tmp_path: Path) -> None:
    """Two exports are named after their files, and no kernel of one was found in the other."""
    for name in ("before.sqlite", "after.sqlite"):
        shutil.copyfile(real("h100_2gpu_part.sqlite"), tmp_path / name)
    run = CliRunner().invoke(
        command, [str(tmp_path / "before.sqlite"), str(tmp_path / "after.sqlite"), "--json"]
    )
    told = json.loads(run.stdout)
    assert told["kernels"] == [] and told["ranks"] == [2, 2]
    assert "before before and after after are compared as one worker." in told["notes"]


def test_a_kernel_that_got_longer_is_found_in_the_other_file(tmp_path: Path) -> None:
    for name, long in (("control.json", 1.0), ("test.json", 2.0)):
        write_trace(
            tmp_path / name, [mark("step 1", 0, 99), kernel("gemm", 1, 9 * long), kernel("norm", 50, 9)]
        )
    run = CliRunner().invoke(command, [str(tmp_path / "control.json"), str(tmp_path / "test.json"), "--json"])
    (change,) = json.loads(run.stdout)["kernels"]
    assert change["what"] == "test/-: gemm" and change["share"] == 1.0


def test_two_workers_a_side_are_matched_by_the_command_of_docs_traces(tmp_path: Path) -> None:
    for side, names, long in (("before", ("actor", "rollout"), 1.0), ("after", ("policy", "engine"), 2.0)):
        (tmp_path / side).mkdir()
        for name in names:
            write_trace(
                tmp_path / side / f"{name}_rank0.json",
                [
                    mark("step 1", 0, 99),
                    kernel(f"{names.index(name)} gemm", 1, 9 * long),
                    kernel("norm", 50, 9),
                ],
            )
    sides = [str(tmp_path / side) for side in ("before", "after")]
    run = CliRunner().invoke(command, [*sides, "--as", "actor=policy", "--as", "rollout=engine", "--json"])
    assert {(change["what"], change["share"]) for change in json.loads(run.stdout)["kernels"]} == {
        ("policy/-: 0 gemm", 1.0),
        ("engine/-: 1 gemm", 1.0),
    }


def test_two_jobs_that_captured_one_worker_each_have_two() -> None:
    run = {"path": "/logs/1-logs", "job": "1"}
    one, two = (simulated_answer(2, 2) | {"run": run} for _ in range(2))
    for answer, kept in ((one, "policy_worker"), (two, "generation_worker")):
        answer["ranks"] = [row | {"worker": kept} for row in answer["ranks"]]
    assert matched(typed(one), typed(two), []) == (typed(one), [])


def test_workers_are_matched_by_hand() -> None:
    before = simulated_answer(4, 4)
    after = json.loads(json.dumps(before).replace("policy_worker", "actor"))
    one, said = matched(typed(before), typed(after), ["policy_worker=actor"])
    assert [c.uncaptured for c in compare(one, typed(after)).phases] == [""] * len(
        compare(one, typed(after)).phases
    )
    assert "policy_worker before and actor after" in said[0]
    assert {row.worker for row in one.kernels} == {row.worker for row in typed(after).kernels}
    with pytest.raises(UsageError, match=r"'polcy_worker' is no worker of the first run.*policy_worker"):
        matched(typed(before), typed(after), ["polcy_worker=actor"])
    with pytest.raises(UsageError, match="BEFORE=AFTER"):
        matched(typed(before), typed(after), ["policy_worker"])


@pytest.mark.parametrize("rows", ["anatomy", "segments", "stragglers", "memory", "phase"])
def test_a_report_whose_rows_name_no_rank_or_phase_of_it_is_refused(tmp_path: Path, rows: str) -> None:
    answer: dict[str, Any] = json.loads(json.dumps(straggling(run_of(1, 3))))
    peak = {"rank": 0, "device": 0, "phase": "train", "allocated_bytes": 1, "reserved_bytes": 1}
    answer["memory"] = [peak]
    sound, damaged = tmp_path / "sound.json", tmp_path / "damaged.json"
    sound.write_text(json.dumps(answer))
    if rows == "phase":
        answer["anatomy"][0]["phases"][0]["phase"] = len(answer["phase_names"])
    elif rows == "segments":
        answer["segments"].append([-1, 1, 0, 0, 5])
    else:
        answer[rows][0]["rank"] = len(answer["ranks"])
    damaged.write_text(json.dumps(answer))
    assert load_answer(sound).stragglers
    done = CliRunner().invoke(command, [str(sound), str(damaged)])
    assert isinstance(done.exception, UsageError)
    assert "damaged.json: cannot be read as report.json (a row names a" in str(done.exception)
