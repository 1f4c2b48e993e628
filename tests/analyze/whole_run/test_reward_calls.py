"""Rewards and tools of every step, against what was told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.as_data import report  # noqa: E402
from tests.analyze.whole_run.dealt_requests import STEP_NS, ZERO_NS, grouped  # noqa: E402
from tests.recorder.recorded import write_record  # noqa: E402

from rlprof_ops.analyze.whole_run.section import whole_run  # noqa: E402
from rlprof_ops.recorder.samples.step_marks import Phase, ToldStep  # noqa: E402


def rewarded(run: Path) -> None:
    """Four steps: the driver's reward, and tools on two ranks that call one more each step; the second rank's
    last step is long.
    """
    told = []
    for step in range(1, 5):
        begin = ZERO_NS + step * STEP_NS
        driver = {"generation": Phase(1, 0.0, 5.0, 5.0), "reward": Phase(8, 5.0, 2.0, 2.0)}
        mine = [ToldStep("driver", 0, 1, True, step, begin, 8.0, driver)]
        for rank in range(2):
            seconds = 4.0 if (rank, step) == (1, 4) else 0.5 * step
            tools = {"tool_calls": Phase(step, 0.0, seconds, seconds), "train": Phase(1, 5.0, 1.0, 1.0)}
            mine.append(ToldStep("agent", rank, 2 + rank, False, step, begin, 8.0, tools))
        told.append(mine)
    write_record(run, "n1", told)


def test_every_rewards_and_tools_call_is_counted(tmp_path: Path) -> None:
    rewarded(tmp_path)
    found = whole_run(tmp_path)
    assert found is not None
    reward, tools = found.calls
    assert (reward.worker, reward.name, reward.ranks, reward.steps) == ("driver", "reward", 1, 4)
    assert (reward.calls, reward.call_ms, reward.step_ms, reward.longest_ms) == (8, 250, 2000, 2000)
    assert (tools.worker, tools.name, tools.ranks, tools.steps) == ("agent", "tool_calls", 2, 4)
    seconds = 0.5 * (1 + 2 + 3 + 4) + 0.5 * (1 + 2 + 3) + 4.0
    assert tools.calls == 2 * (1 + 2 + 3 + 4) / 4
    assert tools.call_ms == pytest.approx(1e3 * seconds / 20, abs=0.01)
    assert tools.step_ms == pytest.approx(1e3 * seconds / 8, abs=0.01) and tools.longest_ms == 4000


def test_the_time_between_turns_is_a_row(tmp_path: Path) -> None:
    grouped(tmp_path)
    found = whole_run(tmp_path)
    assert found is not None and found.requests is not None
    [row] = found.requests.turns
    assert (row.worker, row.name, row.steps, row.calls) == ("rollout", "between turns", 3, 2)
    assert (row.call_ms, row.step_ms, row.longest_ms) == (2000, 4000, 2000)
    assert found.calls == []


@pytest.mark.chromium
def test_the_page_has_a_row_each(tmp_path: Path) -> None:
    pytest.importorskip("selenium")
    from selenium.webdriver.common.by import By
    from tests.analyze.page.test_page import chromium, nothing_wrong, opened

    rewarded(tmp_path)
    report(tmp_path, form="json", jobs=1)
    browser = chromium(tmp_path / "chromium")
    try:
        opened(browser, tmp_path / "report.html")
        cells = [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "#reward-calls tbody td")]
        assert cells[:8] == ["driver", "reward", "1", "8", "250 ms", "2.00 s", "2.00 s", "4"]
        assert cells[8:10] == ["agent", "tool_calls"]
        nothing_wrong(browser)
    finally:
        browser.quit()
