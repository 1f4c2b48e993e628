"""Every request of a step, as it is drawn: on the page and in the timeline."""

from __future__ import annotations

from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.as_data import report  # noqa: E402
from tests.analyze.whole_run.dealt_requests import Dealt, dealt, grouped, steps  # noqa: E402

from rlprof_ops.analyze.whole_run import request_tracks  # noqa: E402
from rlprof_ops.analyze.whole_run.request_tracks import packed  # noqa: E402
from rlprof_ops.analyze.whole_run.run_data import RequestTracks  # noqa: E402
from rlprof_ops.analyze.whole_run.section import whole_run  # noqa: E402


def tracks_of(run: Path) -> list[RequestTracks]:
    found = whole_run(run)
    assert found is not None and found.requests is not None
    return found.requests.tracks


def test_every_request_of_the_worst_steps_is_there(tmp_path: Path) -> None:
    grouped(tmp_path)
    tracks = tracks_of(tmp_path)
    assert [(each.step, len(each.rows), each.left_out) for each in tracks] == [
        (1, 34, 0),
        (2, 34, 0),
        (3, 34, 0),
    ]
    one = tracks[0]
    assert (one.replicas, one.reasons, one.phase_us) == (["rollout 0", "rollout 1"], ["stop"], 18_000_000)
    rows = dict(zip(one.ids, one.rows, strict=True))
    assert rows["1-0-0"] == [0, 0, -1, -1, 1_000_000, 2, 10, 0, 1, -1, 0]
    assert rows["1-3-7t3"] == [1, 8_000_000, -1, -1, 17_000_000, 2, 90, 3, 3, -1, 0]
    ends = sorted(row[4] for row in one.rows)
    assert sum(end <= one.tail_us for end in ends) == 33  # of 34: 95 % are 32.3


def test_of_too_many_the_longest_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_tracks, "MOST_REQUESTS", 15)
    steps(tmp_path, 3)
    for rank in range(2):
        dealt(
            tmp_path,
            rank,
            [Dealt(f"{s}-{rank}-{n}", s, 0.0, 1.0 + n + s / 10, 5) for s in (1, 2, 3) for n in range(5)],
        )
    tracks = tracks_of(tmp_path)
    assert [(len(each.rows), each.left_out) for each in tracks] == [(10, 0), (5, 5)]
    assert {name[-1] for name in tracks[1].ids} == {"2", "3", "4"}


@pytest.mark.parametrize("seed", range(10))
def test_what_lies_on_one_lane_does_not_overlap_and_lanes_are_as_few_as_can_be(seed: int) -> None:
    draw = np.random.default_rng(seed)
    starts = np.sort(draw.integers(0, 1000, 300))
    ends = starts + draw.integers(1, 200, 300)
    lanes = np.array(packed(starts, ends))
    for lane in range(int(lanes.max()) + 1):
        mine = lanes == lane
        assert (starts[mine][1:] >= ends[mine][:-1]).all()
    assert lanes.max() + 1 == max(int(((starts <= t) & (ends > t)).sum()) for t in range(1300))


@pytest.mark.chromium
def test_the_page_draws_them_and_finds_one_by_its_id(tmp_path: Path) -> None:
    pytest.importorskip("selenium")
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from tests.analyze.page.test_page import chromium, nothing_wrong, opened

    steps(tmp_path, 1, 18.0, 19.0)
    draw = np.random.default_rng(0)
    for rank in range(4):
        seconds = np.minimum(draw.lognormal(0.5, 0.7, 1200), 17.0).tolist()
        rows = [
            Dealt(f"chat-{rank}-{n}<b>", 1, n / 200, n / 200 + s / 2, 10, 0.1) for n, s in enumerate(seconds)
        ]
        dealt(tmp_path, rank, rows)
    report(tmp_path, form="json", jobs=1)
    browser = chromium(tmp_path / "chromium")
    try:
        opened(browser, tmp_path / "report.html")
        canvas = browser.find_element(By.ID, "requests-canvas")
        assert "4800 requests" in browser.find_element(By.CSS_SELECTOR, "#requests-tracks .note").text
        took_ms = browser.execute_script(
            "return [0, 1, 2, 3, 4].map(() => { const t = performance.now();"
            " dispatchEvent(new Event('resize')); return performance.now() - t })"
        )
        assert min(took_ms) < 1000  # a busy machine takes longer now and then
        browser.execute_script("arguments[0].scrollIntoView()", canvas)
        ActionChains(browser).move_to_element_with_offset(canvas, -200, 0).perform()
        find = browser.find_element(By.ID, "requests-find")
        find.send_keys("chat-2-7<b>")
        assert canvas.get_attribute("data-found") == "1"
        browser.save_screenshot(str(tmp_path / "page.png"))
        colours = browser.execute_script(
            "const c = arguments[0], s = new Set();"
            "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "for (let i = 0; i < d.length; i += 4) s.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);"
            "return s.size",
            canvas,
        )
        assert colours > 4
        nothing_wrong(browser)
    finally:
        browser.quit()
