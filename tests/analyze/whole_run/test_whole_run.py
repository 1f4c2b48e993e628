"""The whole run from the nodes' records: its numbers against those that were told, and its page."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from click.testing import CliRunner  # noqa: E402
from tests.analyze.as_data import data_of, report, typed  # noqa: E402
from tests.recorder.recorded import SECOND, write_record  # noqa: E402
from tests.recorder.simulated import BEGIN_NS, healthy, slower  # noqa: E402

from rlprof_ops.analyze.output.run_diff import compare, parse_rule, unjudged, violations  # noqa: E402
from rlprof_ops.analyze.page.data import page_data  # noqa: E402
from rlprof_ops.analyze.reporting import load_answer  # noqa: E402
from rlprof_ops.analyze.whole_run.records import read_all  # noqa: E402
from rlprof_ops.analyze.whole_run.section import MOST_STEPS, whole_run  # noqa: E402
from rlprof_ops.analyze.whole_run.tail import tail_share  # noqa: E402
from rlprof_ops.commands import diff  # noqa: E402
from rlprof_ops.errors import UsageError  # noqa: E402
from rlprof_ops.recorder.samples.step_marks import ToldStep  # noqa: E402
from rlprof_ops.runtime.ranges.phase_times import Phase  # noqa: E402


def section(run: Path, **more: Any) -> dict[str, Any]:
    found = whole_run(run, **more)
    assert found is not None
    return msgspec.to_builtins(found)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[ToldStep]]]:
    """120 steps of four ranks; rank 2 is slow in train from step 60 on. In front, what the head has found."""
    folder = tmp_path_factory.mktemp("run")
    told = [slower(rows, 2, "train", 2.0) if rows[0].step >= 60 else rows for rows in healthy(1, 120, 4)]
    write_record(folder, "n1", told)
    (folder / "recorder").mkdir()
    row = {"kind": "slow_rank", "text": "rank 2 is slow", "step": 63}
    (folder / "recorder" / "findings.jsonl").write_text(json.dumps(row) + '\n{"kind"')
    return folder, told


def test_every_step_and_phase_is_there(run: tuple[Path, list[list[ToldStep]]]) -> None:
    folder, told = run
    found = section(folder, windows=[(64, "torch of 3 ranks")])
    drivers = [rows[0] for rows in told]
    assert (found["worker"], found["count"], found["steps"]) == ("driver", 120, list(range(1, 121)))
    assert found["median_ms"] == pytest.approx(1e3 * median(row.seconds for row in drivers), rel=1e-3)
    for name in ("middle_ms", "least_ms", "most_ms"):
        assert found[name] == pytest.approx([1e3 * row.seconds for row in drivers], rel=1e-3, abs=0.06)
    phases = {phase["name"]: phase["own_ms"] for phase in found["phases"]}
    for name in ("generation", "train", "evaluation"):
        own = [1e3 * row.phases[name].own_s if name in row.phases else 0.0 for row in drivers]
        assert phases[name] == pytest.approx(own, rel=1e-3, abs=0.06)
    marks = {(mark["kind"], mark["step"], mark["text"]) for mark in found["marks"]}
    assert {("finding", 63, "rank 2 is slow"), ("window", 64, "torch of 3 ranks")} < marks
    assert {step for kind, step, text in marks if text == "save_checkpoint"} == {50, 100}


def test_the_slow_rank_stands_out_in_the_map(run: tuple[Path, list[list[ToldStep]]]) -> None:
    (heat,) = section(run[0])["heat"]
    cells = np.frombuffer(base64.b64decode(heat["cells"]), np.uint8).reshape(4, 120)
    factors = (cells.astype(float) - 1) / 100
    assert (heat["worker"], heat["ranks"], heat["count"]) == ("policy_worker", [0, 1, 2, 3], 4)
    late = factors[:, 60:].mean(axis=1) / factors[:, :55].mean(axis=1)
    assert late.argmax() == 2 and late[2] > 1.15 and abs(np.delete(late, 2) - 1).max() < 0.1


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -float("inf")])
def test_a_row_with_a_length_that_is_no_number_is_left_out(tmp_path: Path, seconds: float) -> None:
    """A step, and a phase of a second one."""
    told = [rows[:1] for rows in healthy(1, 20)]
    told[4][0] = replace(told[4][0], seconds=seconds)
    trained = told[9][0].phases["train"]
    for phase in (replace(trained, begin_s=seconds), replace(trained, seconds=seconds)):
        told[9][0].phases["train"] = phase
        run = tmp_path / str(phase.begin_s)
        write_record(run, "n1", told)
        found = section(run)
        assert found["steps"] == [step for step in range(1, 21) if step != 5]
        (train,) = (column["own_ms"] for column in found["phases"] if column["name"] == "train")
        assert train[8] == 0 < train[9]
        assert report(run, form="json", jobs=1)["whole_run"]["count"] == 19


@pytest.mark.parametrize("nodes", [("n1", "n1"), ("n1", "n2"), ("n2", "n1")])
@pytest.mark.parametrize("pids", [(800, 900), (999, 1000)])
def test_of_a_rank_that_began_again_the_map_shows_the_later_life(
    tmp_path: Path, nodes: tuple[str, str], pids: tuple[int, int]
) -> None:
    """Rank 1 is slow and is killed after step 30; from step 21 on it is done again, and keeps up."""
    later = int(3600 * SECOND)
    parts: dict[str, list[list[ToldStep]]] = {"n1": [], "n2": []}
    for step in range(1, 41):
        begin_ns = BEGIN_NS + step * SECOND
        row = ToldStep("policy", 0, 100, False, step, begin_ns, 1.0, {"train": Phase(1, 0.0, 0.5, 0.5)})
        parts["n1"].append([replace(row, rank=rank, pid=100 + rank) for rank in (0, 2)])
        if step <= 30:
            slow = {"train": Phase(1, 0.0, 0.9, 0.9)}
            parts[nodes[0]].append([replace(row, rank=1, pid=pids[0], phases=slow)])
        if step > 20:
            parts[nodes[1]].append([replace(row, rank=1, pid=pids[1], begin_ns=begin_ns + later)])
    for node, told in parts.items():
        if told:
            write_record(tmp_path, node, told)
    (heat,) = section(tmp_path)["heat"]
    cells = np.frombuffer(base64.b64decode(heat["cells"]), np.uint8).reshape(3, 40)
    assert (cells[1, :20] == 181).all() and (cells[1, 20:] == 101).all()


def test_a_restart_is_one_history(tmp_path: Path) -> None:
    told = [rows[:1] for rows in healthy(1, 40)]
    later = int(3600 * SECOND)
    again = [[replace(row, pid=77, begin_ns=row.begin_ns + later) for row in rows] for rows in told[24:]]
    write_record(tmp_path, "n1", [*told[:30], *again])
    found = section(tmp_path)
    assert found["steps"] == list(range(1, 41))
    assert found["begin_ms"][24] - found["begin_ms"][23] > 3_000_000
    assert [(m["kind"], m["step"]) for m in found["marks"] if m["kind"] == "restart"] == [("restart", 25)]


def test_a_long_run_is_summed_up_and_its_worst_step_stays(tmp_path: Path) -> None:
    told = []
    for step in range(1, 6001):
        seconds = 50.0 if step == 4321 else 1.0
        told.append(ToldStep("driver", 0, 1, True, step, BEGIN_NS + step * SECOND, seconds, {}))
    write_record(tmp_path, "n1", [told])
    found = section(tmp_path)
    assert len(found["steps"]) == MOST_STEPS and sum(found["counts"]) == 6000 == found["count"]
    worst = max(range(MOST_STEPS), key=lambda i: found["most_ms"][i])
    assert found["most_ms"][worst] == 50_000 and 4321 - found["steps"][worst] in range(found["counts"][worst])


def test_the_tail_of_generation(tmp_path: Path) -> None:
    """100 requests that end within 10 s but for four, which take 30 s more: three quarters of the phase."""
    moments = np.arange(40) * SECOND
    requests = np.array([100 - 9 * second for second in range(10)] + [4] * 30)
    requests[9] = 20
    assert tail_share(moments, requests, 0, 40 * SECOND) == pytest.approx(0.75)
    assert tail_share(moments[:5], requests[:5], 0, 5 * SECOND) is None, "too short to tell"

    phases = {"generation": Phase(1, 0.0, 40.0, 40.0), "train": Phase(1, 40.0, 10.0, 10.0)}
    told = [
        [ToldStep("driver", 0, 1, True, step, (1_760_000_000 + 50 * step) * SECOND, 50.0, phases)]
        for step in (1, 2)
    ]
    seconds = {1_760_000_000 + 50 * step + i: int(requests[i]) for step in (1, 2) for i in range(40)}
    write_record(tmp_path, "n1", told, seconds)
    assert section(tmp_path)["tail"] == {
        "of": "requests", "share": pytest.approx(0.75), "steps": [1, 2], "shares": [0.75, 0.75],
    }  # fmt: skip


def test_without_a_record_there_is_none(tmp_path: Path) -> None:
    assert whole_run(tmp_path) is None
    (tmp_path / "nodes" / "n1" / "record").mkdir(parents=True)
    (tmp_path / "nodes" / "n1" / "record" / "record.bin").write_bytes(b"RLPR" + b"\xff" * 90)
    assert whole_run(tmp_path) is None


def test_a_run_without_captures_has_a_report(run: tuple[Path, list[list[ToldStep]]]) -> None:
    answer = report(run[0], form="json", jobs=1)
    assert answer["ranks"] == [] and answer["whole_run"] is not None
    again = data_of(load_answer(run[0]))
    assert again["whole_run"] == answer["whole_run"]


def test_whole_runs_are_compared(tmp_path: Path) -> None:
    """Train is a tenth slower in one of two runs with other noise; a third differs by chance alone."""
    runs = {}
    for name, seed, factor in (("before", 1, 1.0), ("slower", 2, 1.3), ("chance", 3, 1.0)):
        told = [slower(rows, 99, "train", factor)[:1] for rows in healthy(seed, 200, 4)]
        write_record(tmp_path / name, "n1", told)
        runs[name] = str(tmp_path / name)
    found = {}
    for name in ("slower", "chance"):
        done = CliRunner().invoke(diff.command, [runs["before"], runs[name], "--json"])
        assert done.exit_code == 0, done.output
        found[name] = {row["what"]: row for row in json.loads(done.output)["whole_run"]}
    assert found["slower"]["driver/train"]["verdict"] == "slower"
    assert found["slower"]["driver/train"]["share"] == pytest.approx(0.3, abs=0.1)
    assert {row["verdict"] for row in found["chance"].values()} == {"noise"}
    assert found["slower"]["driver/reward"]["verdict"] == "noise"
    done = CliRunner().invoke(
        diff.command, [runs["before"], runs["slower"], *("--fail-if", "run/driver/train>5%")]
    )
    assert done.exit_code == 1 and "The whole run" in done.output, done.output


@pytest.mark.parametrize("count", [16, 80])
def test_equal_runs_of_many_phases_are_equal(tmp_path: Path, count: int) -> None:
    """Of which phases each run keeps fewer than there are, chance decides."""
    for name, seed in (("before", 1), ("after", 2)):
        chance, told = random.Random(seed), []
        for step in range(1, 101):
            own = [max(2.0 / (place + 1), 0.05) * chance.gauss(1, 0.03) for place in range(count)]
            phases = {f"phase_{place:02d}": Phase(1, sum(own[:place]), s, s) for place, s in enumerate(own)}
            row = ToldStep("driver", 0, 1, True, step, BEGIN_NS + step * 20 * SECOND, sum(own), phases)
            told.append([row])
        write_record(tmp_path / name, "n1", told)
    runs = [str(tmp_path / name) for name in ("before", "after")]
    done = CliRunner().invoke(diff.command, [*runs, "--json", "--fail-if", "run/driver/phase_15>20ms"])
    assert done.exit_code == 0, done.output
    found = {row["what"]: row["verdict"] for row in json.loads(done.output)["whole_run"]}
    assert {verdict.partition(" captured")[0] for verdict in found.values()} <= {"noise", "not"}
    assert list(found.values()).count("noise") >= min(count, 50) and "driver/(other phases)" not in found
    answer = load_answer(tmp_path / "before", 1)
    assert answer.whole_run is not None and len(answer.whole_run.phases) == min(count, 65)
    few = page_data(answer)["whole_run"].phases
    assert [phase.name for phase in few] == [*(f"phase_{n:02d}" for n in range(12)), "(other phases)"]
    all_ms, few_ms = (sum(sum(p.own_ms) for p in of) for of in (answer.whole_run.phases, few))
    assert few_ms == pytest.approx(all_ms, rel=1e-3)


@pytest.mark.parametrize("recorded", ["before", "after"])
def test_of_a_run_without_a_record_no_rule_about_the_whole_run_is_judged(
    run: tuple[Path, list[list[ToldStep]]], recorded: str
) -> None:
    whole = report(run[0], form="json", jobs=1)
    answers = {"before": whole | {"whole_run": None}, "after": whole | {"whole_run": None}}
    neither = compare(typed(answers["before"]), typed(answers["after"]))
    answers[recorded] = whole
    found = compare(typed(answers["before"]), typed(answers["after"]))
    rules = [parse_rule(rule, found) for rule in ("run/step>5%", "run/driver/train>1ms")]
    other = "after" if recorded == "before" else "before"
    assert violations(rules, found) == []
    assert unjudged(rules, found) == [
        f"run/step>5%: step was not captured {other}",
        f"run/driver/train>1ms: driver/train was not captured {other}",
    ]
    rules = [parse_rule("run/step>5%", neither)]
    assert violations(rules, neither) == []
    assert unjudged(rules, neither) == ["run/step>5%: step was not captured before or after"]
    with pytest.raises(UsageError, match="'run/driver/train' is in neither run"):
        parse_rule("run/driver/train>1ms", neither)


def test_a_rule_about_runs_of_one_recorded_step_is_not_judged(tmp_path: Path) -> None:
    for name in ("before", "after"):
        write_record(tmp_path / name, "n1", [rows[:1] for rows in healthy(1, 1)])
    runs = [str(tmp_path / name) for name in ("before", "after")]
    done = CliRunner().invoke(diff.command, [*runs, "--fail-if", "run/step>5%"])
    assert done.exit_code == 4, done.output


@pytest.mark.chromium
def test_the_page_shows_the_whole_run(run: tuple[Path, list[list[ToldStep]]], tmp_path: Path) -> None:
    pytest.importorskip("selenium")
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from tests.analyze.page.test_page import chromium, nothing_wrong, opened

    report(run[0], form="json", jobs=1, output=tmp_path)
    browser = chromium(tmp_path / "chromium")
    try:
        opened(browser, tmp_path / "report.html")
        drawn = (
            "const c = document.getElementById(arguments[0]), d = c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data; let n = 0;"
            "for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n"
        )
        for canvas in ("run-history", "run-phases", "run-heat"):
            assert browser.execute_script(drawn, canvas) > 1000, canvas
        history = browser.find_element(By.ID, "run-history")
        ActionChains(browser).move_to_element_with_offset(history, 100, 20).perform()
        tip = browser.find_element(By.ID, "tip").text
        assert tip.startswith("step ") and "generation" in tip
        text = browser.find_element(By.ID, "run-marks").text
        assert "rank 2 is slow" in text
        assert browser.find_element(By.CSS_SELECTOR, "nav a").text
        nothing_wrong(browser)
    finally:
        browser.quit()


def test_steps_of_a_first_trainer_have_no_phases_of_a_second_one(tmp_path: Path) -> None:
    """Which counts from 1 again in blocks of its own."""
    first, second = list(healthy(1, 20, 2)), list(healthy(2, 25, 2))
    later = first[-1][0].begin_ns - BEGIN_NS + 60 * SECOND
    again = [[replace(row, begin_ns=row.begin_ns + later) for row in told] for told in second]
    write_record(tmp_path, "n1", [*first, *again])
    [driver] = [each for each in read_all(tmp_path, (), 1)[0].processes if each.leads]
    whose = [told[0] for told in (*first, *again[20:])]
    assert list(driver.step) == list(range(1, 26))
    assert list(driver.begin_ns) == [row.begin_ns for row in whose]
    trained_s = [row.phases["train"].own_s for row in whose]
    assert list(driver.phases["train"]) == pytest.approx(trained_s, rel=1e-3)
