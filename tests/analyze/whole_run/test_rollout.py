"""Generation from inside: every number against what two simulated engines were made to say."""

from __future__ import annotations

from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of, report, typed  # noqa: E402
from tests.analyze.whole_run.generations import (  # noqa: E402
    PHASE_S,
    PREEMPTED,
    SLOTS,
    STEPS,
    in_flight,
    tokens_a_step,
    two_engines,
)

from rlprof_ops.analyze.output.rollout_lines import rollout_lines  # noqa: E402
from rlprof_ops.analyze.whole_run import looks  # noqa: E402
from rlprof_ops.analyze.whole_run.section import whole_run  # noqa: E402


def test_every_number_is_what_the_engines_said(tmp_path: Path) -> None:
    two_engines(tmp_path)
    answer = answer_of(tmp_path, jobs=1)
    found = answer["whole_run"]["rollout"]
    assert (found["steps"], found["phase_ms"], found["step_ms"]) == (len(STEPS), 40_000, 50_000)
    done = {row["share"]: (row["left"], row["saves_ms"], row["requests"]) for row in found["done"]}
    assert done == {
        0.5: (0.75, 30_000, 100), 0.9: (0.5, 20_000, 20), 0.95: (0.35, 14_000, 10), 0.99: (0.25, 10_000, 2)
    }  # fmt: skip
    assert found["tokens"] == pytest.approx(tokens_a_step(), rel=0.01)
    assert found["prompt_tokens"] == pytest.approx(2 * 2 * 500, rel=0.01)
    assert found["tokens_s"] == pytest.approx(tokens_a_step() / PHASE_S, rel=0.01)
    assert (found["preempted"], found["steps_preempted"]) == (PREEMPTED, len(STEPS))
    assert found["cache_peak"] == 0.64
    seconds = np.arange(PHASE_S)
    running = [2 * min(in_flight(s) // 2, SLOTS) for s in seconds]
    assert found["running_at"] == running and found["batch_peak"] == 2 * SLOTS
    assert found["batch_mean"] == pytest.approx(np.mean(running), abs=0.01)
    assert found["waiting_at"] == [in_flight(s) - r for s, r in zip(seconds, running, strict=True)]
    assert found["tokens_s_at"] == pytest.approx([10 * r for r in running], rel=0.01)

    findings = {row["kind"]: row for row in answer["findings"]}
    assert (
        "95 % were done it went on for 14.0 s a step (35 % of the phase, 28 % of the step)"
        in (findings["last_requests"]["text"])
    )
    assert findings["last_requests"]["saves_ns"] == 14_000_000_000
    assert f": {PREEMPTED} requests a step are preempted" in findings["preemption"]["text"]
    text = "\n".join(rollout_lines(typed(answer)))
    assert "95 % after 65 % (then 14.0 s more)" in text and "12 preempted a step" in text


@pytest.mark.parametrize("rests", [True, False])
def test_tokens_beside_a_look_at_rest_are_the_phases_own(tmp_path: Path, rests: bool) -> None:
    """An engine at 100 tokens/s from 0.4 to 6.3 s of each step of 10 s, looked at at full seconds. With two
    requests of somebody else's at all times, nobody knows whose the tokens at the borders are.
    """
    from tests.recorder.recorded import SECOND, write_record

    from rlprof_ops.recorder.samples.step_marks import Phase, ToldStep

    begin_s, end_s = 0.4, 6.3
    phases = {"generation": Phase(1, begin_s, end_s - begin_s, end_s - begin_s)}
    told, says = [], {}
    for step in range(1, 5):
        base = 1_760_000_000 + 10 * step
        told.append([ToldStep("driver", 0, 1, True, step, base * SECOND, 10.0, phases)])
        for second in range(10):
            rate = 100 * max(0.0, min(second, end_s) - max(second - 1, begin_s))
            running = 8 if begin_s < second < end_s else 0
            says[base + second] = (running if rests else running + 2, 0, 500, 0, rate, 0.0)
    write_record(tmp_path, "n1", told, engine=says)
    found = whole_run(tmp_path)
    assert found is not None and found.rollout is not None and found.rollout.steps == 4
    assert (found.rollout.tokens == pytest.approx(590, abs=1)) is rests


def test_few_requests_tell_no_share_that_is_less_than_one_of_them(tmp_path: Path) -> None:
    from tests.recorder.recorded import SECOND, write_record

    from rlprof_ops.recorder.samples.step_marks import Phase, ToldStep

    phases = {"generation": Phase(1, 0.0, 20.0, 20.0)}
    told = [[ToldStep("driver", 0, 1, True, 1, 1_760_000_000 * SECOND, 20.0, phases)]]
    write_record(tmp_path, "n1", told, {1_760_000_000 + s: 12 if s < 10 else 2 for s in range(20)})
    found = whole_run(tmp_path)
    assert found is not None and found.rollout is not None
    assert [row.share for row in found.rollout.done] == [0.5, 0.9]
    assert found.rollout.done[0].left == 0.5


def test_without_engines_there_is_none(tmp_path: Path) -> None:
    from tests.recorder.recorded import write_record
    from tests.recorder.simulated import healthy

    write_record(tmp_path, "n1", healthy(1, 10, 2))
    found = whole_run(tmp_path)
    assert found is not None and found.rollout is None


def test_long_records_keep_their_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day of looks is put together by neighbours: tokens and preempted requests stay what they were."""
    two_engines(tmp_path)
    whole = whole_run(tmp_path)
    monkeypatch.setattr(looks, "MOST_LOOKS", 60)
    fewer = whole_run(tmp_path)
    assert whole is not None and fewer is not None and whole.rollout and fewer.rollout
    for name in ("tokens", "preempted"):
        assert getattr(fewer.rollout, name) == pytest.approx(getattr(whole.rollout, name), rel=0.1)


@pytest.mark.chromium
def test_the_page_shows_generation_from_inside(tmp_path: Path) -> None:
    pytest.importorskip("selenium")
    from selenium.webdriver.common.by import By
    from tests.analyze.page.test_page import chromium, nothing_wrong, opened

    two_engines(tmp_path)
    report(tmp_path, form="json", jobs=1)
    browser = chromium(tmp_path / "chromium")
    try:
        opened(browser, tmp_path / "report.html")
        cells = [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "#rollout-done tbody tr td")]
        assert cells[12:16] == ["95 %", "65 %", "14.0 s", "28 %"]
        assert len(browser.find_elements(By.CSS_SELECTOR, "#rollout-curves polyline")) == 5
        assert "12 requests a step are preempted" in browser.find_element(By.ID, "rollout-text").text
        assert not browser.find_element(By.ID, "rollout-serving").text
        nothing_wrong(browser)
    finally:
        browser.quit()
