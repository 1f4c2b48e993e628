"""The comparison of two runs: what is a change, what is noise, and the rules that fail a build."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")
pytest.importorskip("rich")
from click.testing import CliRunner
from tests.analyze.fake_run import make_run
from tests.analyze.simulated import simulated_answer

from rlprof_ops.analyze.output.diff import compare, describe, parse_rule, unjudged, violations
from rlprof_ops.analyze.output.diff_text import show
from rlprof_ops.commands.diff import command
from rlprof_ops.errors import UsageError


def slower(answer: dict[str, Any], phase: str, factor: float) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(answer))
    number = changed["phase_names"].index(phase)
    for row in changed["anatomy"]:
        for part in row["phases"]:
            if part["phase"] == number:
                part["duration_ns"] = round(part["duration_ns"] * factor)
    for kernel in changed["kernels"]:
        if kernel["name"].startswith("kernel_39"):
            kernel["total_ns"] *= 2
    return changed


def test_a_phase_that_got_slower_is_found_and_nothing_else() -> None:
    before = simulated_answer(8, 8)
    diff = compare(before, slower(before, "train", 1.1))
    assert [c.what for c in diff.phases if c.real] == ["policy_worker/train"]
    change = diff.phases[0]
    assert (
        change.share == pytest.approx(0.1, abs=0.005) and change.noise_ns is not None and change.noise_ns > 0
    )
    assert not diff.step.real
    assert {k.what.partition(": ")[2].partition(" ")[0] for k in diff.kernels} == {"kernel_39"}


def test_one_step_tells_nothing_and_says_so() -> None:
    before = simulated_answer(4, 1)
    diff = compare(before, slower(before, "train", 2.0))
    assert not any(c.real for c in diff.phases)
    assert "noise is not known" in diff.notes[0]


@pytest.mark.parametrize(
    ("rule", "broken"),
    [("train>5%", True), ("train>15%", False), ("policy_worker/train>1ms", True), ("train>1s", False), ("step>0.1%", False),
     ("ref_logprob>0%", False), ("missing>0", False), ("stragglers>0", False)],
)  # fmt: skip
def test_rules(rule: str, broken: bool) -> None:
    before = simulated_answer(8, 8)
    diff = compare(before, slower(before, "train", 1.1))
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
        parse_rule(rule, compare(answer, answer))
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
        diff = compare(run_of(2 * pair, steps), run_of(2 * pair + 1, steps))
        false += diff.step.real or any(c.real for c in diff.phases)
    assert false <= 8


def test_a_large_change_is_found_with_five_steps() -> None:
    found = 0
    for pair in range(20):
        diff = compare(run_of(2 * pair, 5, 0.02), slower(run_of(2 * pair + 1, 5, 0.02), "train", 1.2))
        found += "policy_worker/train" in {c.what for c in diff.phases if c.real}
    assert found >= 18


def test_a_worker_that_was_not_captured_is_not_faster() -> None:
    diff = compare(run_of(1, 5), run_of(2, 5, drop="policy_worker"))
    said = {c.what: c for c in diff.phases}
    assert said["policy_worker/train"].verdict == "not captured after"
    assert said["policy_worker/train"].share is None and not said["policy_worker/train"].real
    assert "was not captured after" in describe(said["policy_worker/train"])
    assert violations([parse_rule("train>0%", diff)], diff) == []
    assert unjudged([parse_rule("train>0%", diff)], diff) == [
        "train>0%: policy_worker/train was not captured after"
    ]


def test_one_step_is_not_called_noise(capsys: pytest.CaptureFixture[str]) -> None:
    before = simulated_answer(4, 1)
    after = json.loads(json.dumps(before))
    after["steps"][0]["duration_ns"] *= 2
    diff = compare(before, after)
    show(diff, "a", "b")
    said = " ".join(capsys.readouterr().out.split())
    assert "with a single step this cannot be told from chance" in said
    assert "within the noise" not in said and "single step" in diff.notes[0]
    assert unjudged([parse_rule("step>5%", diff)], diff)[0].endswith("its noise is not known")
