"""The page in a real browser: drawn, sorted, filtered and hovered, without an error or a request, at 1
rank and at 512.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

webdriver = pytest.importorskip("selenium.webdriver")
pytest.importorskip("msgspec")

from click.testing import CliRunner  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402
from tests.analyze.as_data import report, typed  # noqa: E402
from tests.analyze.fake_run import make_run  # noqa: E402
from tests.analyze.pipelines import write_pipeline  # noqa: E402
from tests.analyze.shared import kernel, launch, mark, real, write_trace  # noqa: E402
from tests.analyze.simulated import simulated_answer  # noqa: E402

from rlprof_ops.analyze import page as page_module  # noqa: E402
from rlprof_ops.analyze.output.run_diff import Change, compare  # noqa: E402
from rlprof_ops.analyze.page import compare as compare_page  # noqa: E402
from rlprof_ops.analyze.page.compare import render_comparison  # noqa: E402
from rlprof_ops.analyze.page.html_page import render  # noqa: E402
from rlprof_ops.commands.timeline import command as timeline  # noqa: E402
from rlprof_ops.words import duration, size  # noqa: E402

pytestmark = pytest.mark.chromium
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def chromium(profile: Path) -> Any:
    """A browser with a profile of its own; whoever asks for it quits it."""
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_page_load_timeout(200)
    return driver


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    driver = chromium(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("run"), ranks=4, slow_rank=1)
    report(run, form="json", jobs=1, cache=False)
    return run / "report.html"


def opened(browser: Any, path: Path, width: int = 1400, height: int = 1000) -> None:
    browser.get_log("browser")
    browser.get_log("performance")
    browser.set_window_size(width, height)
    browser.get(path.as_uri())
    WebDriverWait(browser, 120).until(
        lambda b: b.execute_script("return document.documentElement.dataset.ready") == "1"
    )


def nothing_wrong(browser: Any) -> None:
    assert [entry for entry in browser.get_log("browser") if "chrome:" not in entry["message"]] == []
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"}
    # Chromium's own start page, which may still load on a busy machine, is no request of ours
    assert {
        url
        for url in urls
        if not url.startswith(("file:", "data:", "chrome:", "chrome-untrusted:", "about:"))
    } == set()


def test_the_page_writes_durations_and_sizes_as_the_terminal_does(browser: Any) -> None:
    lines = (Path(page_module.__file__).parent / "page.js").read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("const time ="))
    end = next(i for i, line in enumerate(lines) if line.startswith("const counted ="))
    rules = "\n".join(lines[begin:end])
    times = [0, 12, 999, 999_600, 8_400, 99_951, 312e6, 1.2549e9, 59.96e9, 999.4e9, 999.6e9, 4e12, 7e12, 9e14]
    sizes = [0, 1023, 1536, 99.96 * 2**20, 5 * 2**30, 3 * 2**40, 312.4]
    browser.get("data:text/html,")
    shown = browser.execute_script(
        rules + "return [arguments[0].map(time), arguments[1].map(size)]", times, sizes
    )
    assert shown == [[duration(ns) for ns in times], [size(count) for count in sizes]]


def column(browser: Any, table: str, number: int) -> list[str]:
    cells = browser.find_elements(By.CSS_SELECTOR, f"#{table} tbody tr td:nth-child({number})")
    return [cell.text for cell in cells]


@pytest.mark.quick
def test_findings_and_straggler_are_on_the_page(browser: Any, page: Path) -> None:
    opened(browser, page)
    findings = [e.text for e in browser.find_elements(By.CSS_SELECTOR, "#findings-list li")]
    assert any("policy_worker rank 1 on n1 is slow in train" in text for text in findings)
    assert column(browser, "stragglers-table", 1) == ["policy_worker 1"]
    assert "fake <b>run</b>" in browser.find_element(By.ID, "title").text
    assert column(browser, "chain-table", 3)[:4] == ["generation", "ref_logprob", "train", "weight_sync"]
    assert column(browser, "chain-table", 4)[2].startswith("policy_worker 1")
    changes = column(browser, "what-if-table", 1)
    assert "policy_worker rank 1 like its peers in train" in changes and "generation 20 % faster" in changes
    assert "weight_sync" in column(browser, "slack-table", 2)
    slow = browser.find_element(By.CSS_SELECTOR, "#findings-list li.straggler")
    assert "Mended, a step is " in slow.text
    slow.find_element(By.TAG_NAME, "button").click()
    assert "step=" in browser.current_url and "rank=1&worker=policy_worker" in browser.current_url
    nothing_wrong(browser)


def test_launches_are_folded_below_the_kernels(browser: Any, tmp_path: Path) -> None:
    report(real("torch/b200_eager_part.json.gz"), output=tmp_path, jobs=1, cache=False)
    opened(browser, tmp_path / "report.html")
    assert column(browser, "operators-table", 9) == ["compute", "memory", "compute"]
    folded = browser.find_element(By.ID, "launches")
    assert not browser.find_element(By.ID, "queues-table").is_displayed()
    folded.find_element(By.TAG_NAME, "summary").click()
    answer = json.loads((tmp_path / "report.json").read_text())
    for table, rows, key in (("launches", "launches", "call"), ("durations", "kernel_durations", "name")):
        assert column(browser, f"{table}-table", 1) == [row[key] for row in answer[rows]][:12]
    assert column(browser, "queues-table", 7) == [str(row["longest"]) for row in answer["launch_queues"]]
    nothing_wrong(browser)


def test_the_stages_of_a_pipeline_are_on_the_page(browser: Any, tmp_path: Path) -> None:
    write_pipeline(tmp_path, [100.0, 100.0, 150.0, 100.0], 8)
    report(tmp_path, output=tmp_path, jobs=1, cache=False)
    opened(browser, tmp_path / "report.html")
    assert column(browser, "pipeline-table", 3) == ["0", "1", "2", "3"]
    bubbles = [float(text.split()[0]) for text in column(browser, "pipeline-table", 9)]
    assert min(bubbles) == bubbles[2] and max(bubbles) > 40
    nothing_wrong(browser)


def test_a_slow_node_and_a_missing_rank_are_on_the_page(browser: Any, tmp_path: Path) -> None:
    make_run(tmp_path, ranks=8, generation_ranks=0, slow_node="n1", tell_world=True)
    shutil.rmtree(tmp_path / "profiles" / "torch" / "policy_worker" / "rank2")
    report(tmp_path, output=tmp_path, jobs=1, cache=False)
    opened(browser, tmp_path / "report.html")
    assert column(browser, "stragglers-table", 1) == ["node n1: 4 ranks of policy_worker"]
    assert "node n1 like the other nodes in train" in column(browser, "what-if-table", 1)
    findings = [e.text for e in browser.find_elements(By.CSS_SELECTOR, "#findings-list li")]
    assert "7 of 8 ranks of policy_worker were read, all but rank 2" in findings[0]
    assert any("Node n1 is slow in train: 4 ranks of policy_worker on it" in text for text in findings)
    assert "7 of 8 ranks" in browser.find_element(By.ID, "meta").text
    row = [column(browser, "ranks-table", number) for number in (1, 2, 3)]
    assert row == [["policy_worker"], ["7 of 8"], ["2"]]
    nothing_wrong(browser)


def test_missing_ranks_that_are_not_listed_are_counted(browser: Any, tmp_path: Path) -> None:
    world = {"rank": 0, "world_size": 2 * 10**9}
    write_trace(tmp_path / "w_rank0.json", [mark("step 3", 0, 100)], None, 10**18, distributedInfo=world)
    report(tmp_path, output=tmp_path, jobs=1, cache=False)
    opened(browser, tmp_path / "report.html")
    assert column(browser, "ranks-table", 3) == ["1:1001 and 1,999,998,999 more"]
    nothing_wrong(browser)


def test_tables_sort_and_filter(browser: Any, page: Path) -> None:
    opened(browser, page)
    names = lambda: column(browser, "kernels-table", 1)  # noqa: E731
    shares = [float(text.split()[0]) for text in column(browser, "kernels-table", 5)]
    assert len(names()) >= 7 and "ncclDevKernel_AllReduce_Sum_bf16" in names()
    head = browser.find_elements(By.CSS_SELECTOR, "#kernels-table th")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", head[0])
    head[0].click()
    assert names() == sorted(names()) and head[0].get_attribute("aria-sort") == "ascending"
    head[4].click()
    sorted_shares = [float(text.split()[0]) for text in column(browser, "kernels-table", 5)]
    assert sorted_shares == sorted(shares, reverse=True)
    browser.execute_script("document.querySelector('#reports-table input, #anatomy-table input')")
    tab = next(t for t in browser.find_elements(By.CSS_SELECTOR, ".tab") if "Operators" in t.text)
    tab.click()
    assert all(name.startswith("aten::") for name in names())
    nothing_wrong(browser)


def test_filter_narrows_a_long_table(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(typed(simulated_answer(16, 4))))
    opened(browser, path)
    search = browser.find_element(By.CSS_SELECTOR, "#kernels-table input[type=search]")
    before = len(column(browser, "kernels-table", 1))
    search.send_keys("kernel_7")
    after = column(browser, "kernels-table", 1)
    assert 0 < len(after) < before and all("kernel_7" in name for name in after)
    assert " of " in browser.find_element(By.CSS_SELECTOR, "#kernels-table .tablehead span").text
    search.send_keys("no such kernel")
    assert column(browser, "kernels-table", 1) == []
    nothing_wrong(browser)


def test_hover_tells_what_a_bar_is(browser: Any, page: Path) -> None:
    opened(browser, page)
    canvas = browser.find_element(By.ID, "gantt-canvas")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    size = canvas.size
    seen = set()
    for x in (0.25, 0.3, 0.35, 0.45):
        ActionChains(browser).move_to_element_with_offset(
            canvas, int((x - 0.5) * size["width"]), int(10 - size["height"] / 2)
        ).perform()
        seen.add(browser.find_element(By.ID, "tip").text.split(":")[0])
    assert seen & {"generation", "weight_sync"}, seen
    segment = browser.find_element(By.CSS_SELECTOR, "#anatomy-bars .bar span")
    ActionChains(browser).move_to_element(segment).perform()
    assert "generation: 40.0 ms" in browser.find_element(By.ID, "tip").text
    nothing_wrong(browser)


def test_on_a_telephone_long_names_break_and_ranks_keep_their_number(browser: Any, tmp_path: Path) -> None:
    """390 px by emulation: a window of Chromium itself is never narrower than 500."""
    name = "sm90_xmma_gemm_" + "tn_n_tilesize128x128x64_" * 4
    events = [launch(2.0 * i, i + 1, 1.0) for i in range(200)]
    events += [kernel(name, 2.0 * i + 1, 1.9, correlation=i + 1) for i in range(200)]
    write_trace(tmp_path / "a_worker_of_a_long_name.json", events)
    report(tmp_path / "a_worker_of_a_long_name.json", output=tmp_path, jobs=1, cache=False)
    size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        opened(browser, tmp_path / "report.html")
        assert any("sm90" in e.text for e in browser.find_elements(By.CSS_SELECTOR, "#findings-list li"))
        width, held = browser.execute_script(
            "const e = document.documentElement; return [e.scrollWidth, e.clientWidth]"
        )
        assert width <= held == 390
        shown = browser.execute_script(
            """const name = document.querySelector("#gpu-bars .name"), range = document.createRange();
            range.selectNodeContents(name.lastChild);
            const right = node => node.getBoundingClientRect().right;
            return [name.textContent, right(range) - right(name)]"""
        )
        assert shown[0].endswith(" 0") and shown[1] <= 0.5
        cut = browser.find_element(By.CSS_SELECTOR, "#kernels-table td.wide .goto")
        assert (
            cut.rect["x"] + cut.rect["width"]
            <= browser.find_element(By.CSS_SELECTOR, "#kernels-table td.wide + td").rect["x"]
        )
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    nothing_wrong(browser)


@pytest.mark.parametrize("width", [1400, 700, 420])
@pytest.mark.parametrize("ranks", [4, 64])
def test_nothing_runs_off_the_side(browser: Any, page: Path, many: Path, width: int, ranks: int) -> None:
    opened(browser, page if ranks == 4 else many, width)
    wide = browser.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    assert wide <= 1
    before = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    browser.find_element(By.ID, "theme").click()
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != before
    nothing_wrong(browser)


def shortest_s(action: Callable[[], object], enough_s: float) -> float:
    """The time of the shortest of three, or of the first that is short enough: machines are busy at times."""
    took: list[float] = []
    while len(took) < 3 and min(took, default=enough_s) >= enough_s:
        begun = time.monotonic()
        action()
        took.append(time.monotonic() - begun)
    return min(took)


@pytest.mark.parametrize(("ranks", "steps"), [(1, 1), (512, 8)])
def test_one_rank_and_512(browser: Any, tmp_path: Path, ranks: int, steps: int) -> None:
    path, answer = tmp_path / "report.html", simulated_answer(ranks, steps)
    untold = "The clock of <n1> is not aligned" if ranks == 1 else ""
    if untold:
        answer["critical_path"] = {"steps": [], "slack": [], "untold": untold}
    path.write_text(render(typed(answer)))
    assert path.stat().st_size < 10_000_000
    assert shortest_s(lambda: opened(browser, path), 20) < 20
    if steps > 1:
        numbers = itertools.cycle("43")

        def chosen() -> None:
            Select(browser.find_element(By.ID, "gantt-step")).select_by_visible_text(next(numbers))
            Select(browser.find_element(By.ID, "gantt-worker")).select_by_visible_text("policy_worker")
            browser.execute_script("return 1")

        assert shortest_s(chosen, 5) < 5
    assert browser.execute_script("return document.getElementById('gantt-canvas').width") > 500
    assert (untold in browser.find_element(By.ID, "causes").text) and (untold or ranks == 512)
    nothing_wrong(browser)


def gantt_view(browser: Any) -> list[float]:
    """What of time the chart shows, in µs, as its tooltip's scale has it."""
    found: list[float] = browser.execute_script("return rlprofGantt.view()")
    return found


@pytest.fixture
def many(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(render(typed(simulated_answer(64, 4, slow_rank=30))))
    return path


def test_a_bare_wheel_scrolls_and_with_a_modifier_it_zooms(browser: Any, many: Path) -> None:
    opened(browser, many)
    canvas = browser.find_element(By.ID, "gantt-canvas")
    browser.execute_script("document.getElementById('gantt').scrollIntoView()")
    wheel = (
        "arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: -100, clientX: 700, clientY: 400,"
        " ctrlKey: arguments[1], bubbles: true, cancelable: true}))"
    )
    before = gantt_view(browser)
    assert browser.execute_script(f"return {wheel}", canvas, False) is True  # not taken from the page
    assert gantt_view(browser) == before
    assert browser.execute_script(f"return {wheel}", canvas, True) is False
    after = gantt_view(browser)
    assert after[1] - after[0] == pytest.approx(0.8 * (before[1] - before[0]))
    nothing_wrong(browser)


def test_the_chart_is_moved_by_keys(browser: Any, many: Path) -> None:
    opened(browser, many)
    canvas = browser.find_element(By.ID, "gantt-canvas")
    whole = gantt_view(browser)
    canvas.send_keys("+")
    zoomed = gantt_view(browser)
    assert zoomed[1] - zoomed[0] == pytest.approx(0.8 * (whole[1] - whole[0]))
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert gantt_view(browser)[0] > zoomed[0]
    canvas.send_keys("0")
    assert gantt_view(browser) == whole
    canvas.send_keys("-")
    assert gantt_view(browser)[1] - gantt_view(browser)[0] > whole[1] - whole[0]
    canvas.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert browser.current_url.endswith("#rank=1&worker=vllm_generation_worker")
    nothing_wrong(browser)


def test_a_finding_leads_to_its_rank_below_the_fold(browser: Any, many: Path) -> None:
    opened(browser, many, height=700)
    box = browser.find_element(By.ID, "gantt-box")
    assert browser.execute_script("return arguments[0].scrollTop", box) == 0
    finding = next(
        e for e in browser.find_elements(By.CSS_SELECTOR, "#findings-list .goto") if "rank 30" in e.text
    )
    finding.click()
    assert browser.execute_script("return arguments[0].scrollTop", box) > 100
    assert "rank=30&worker=policy_worker" in browser.current_url
    top = browser.execute_script(
        "const b = arguments[0].getBoundingClientRect(), a = document.getElementById('gantt-axis')"
        ".getBoundingClientRect(); return [b.top, a.top, b.bottom]",
        box,
    )
    assert abs(top[1] - top[0]) < 3 and 0 <= top[0] < 700  # the axis stays in view
    nothing_wrong(browser)


@pytest.mark.parametrize(
    ("hash_", "step", "rank"),
    [("#step=3&rank=30&worker=policy_worker", "3", 30), ("#step=2", "2", None), ("#rank=2", "", 2),
     ("#step=99&rank=99", "", None), ("#gantt", "", None)],
)  # fmt: skip
def test_an_address_leads_to_a_step_and_a_rank(
    browser: Any, many: Path, hash_: str, step: str, rank: int | None
) -> None:
    opened(browser, many)  # first without, so that the other is no mere jump
    browser.get("about:blank")
    browser.get(many.as_uri() + hash_)
    WebDriverWait(browser, 120).until(
        lambda b: b.execute_script("return document.documentElement.dataset.ready") == "1"
    )
    assert browser.find_element(By.ID, "gantt-step").get_attribute("value") == step
    assert (f"rank={rank}&" in browser.current_url or f"rank={rank}" in hash_) is (rank is not None)
    nothing_wrong(browser)


@pytest.mark.parametrize("hosts", [1, 2])
def test_an_address_leads_to_one_of_several_processes_that_share_a_rank(
    browser: Any, tmp_path: Path, hosts: int
) -> None:
    """Engines that all call themselves rank 0 of one worker, of which one is slow; in containers of two hosts
    their pids may be equal.
    """
    for engine in range(8):
        host, pid, events = f"n{engine % hosts}", 100 + engine // hosts, []
        for step in range(1, 9):
            lasts = (3_000_000 + 9000 * (step * 7 % 3 + engine % 2)) * (1.4 if engine == 4 else 1)
            events += [mark(f"step {step}", step * 1e7, 9e6), mark("generation", step * 1e7 + 1e6, lasts)]
        name = f"rollout_rank0_step1-8_{host}_{pid}.pt.trace.json.gz"
        write_trace(tmp_path / name, events, base_ns=10**18, host_name=host)
    answer = report(tmp_path, output=tmp_path, jobs=1, cache=False)
    [slow] = [each for each in answer["findings"] if each["kind"] == "straggler"]
    which = f"rank=0&worker=rollout&host=n0&pid={100 + 4 // hosts}"
    assert slow["link"].endswith(which)
    browser.get("about:blank")
    browser.get((tmp_path / "report.html").as_uri() + slow["link"])
    WebDriverWait(browser, 120).until(
        lambda b: b.execute_script("return document.documentElement.dataset.ready") == "1"
    )
    assert browser.current_url.endswith(which)
    nothing_wrong(browser)


def test_tables_are_saved_as_csv(browser: Any, page: Path) -> None:
    opened(browser, page)
    browser.execute_script(
        "window.saved = []; URL.createObjectURL = b => { b.text().then(t => saved.push(t)); return '#'; };"
        "HTMLAnchorElement.prototype.click = function () { window.named = this.download; };"
    )
    browser.execute_script("document.querySelector('#stragglers-table .csv').click()")
    WebDriverWait(browser, 120).until(lambda b: b.execute_script("return saved.length") == 1)
    rows = list(csv.reader(io.StringIO(browser.execute_script("return saved[0]"))))
    assert rows[0][:4] == ["rank", "host", "phase", "slower by, a step (ns)"]
    assert rows[1][:3] == ["policy_worker 1", "n1", "train"] and 5_000_000 < int(rows[1][3]) < 7_000_000
    assert browser.execute_script("return named") == "rlprof-4711-stragglers.csv"
    tables = browser.find_elements(By.CSS_SELECTOR, ".tablehead")
    assert len(tables) == len(browser.find_elements(By.CSS_SELECTOR, ".tablehead .csv")) > 8


def test_two_runs_side_by_side(browser: Any, tmp_path: Path) -> None:
    """Beside each other where there is room, below each other where not; longer runs have longer bars."""
    before, after = simulated_answer(4, 3), simulated_answer(4, 3)
    for row in after["anatomy"]:
        row["duration_ns"] //= 2
    one, two = typed(before), typed(after)
    path = tmp_path / "diff.html"
    path.write_text(render_comparison(one, two, ("one", "two")))
    for width, beside in ((1400, True), (700, False), (420, False)):
        browser.set_window_size(width, 900)
        browser.get(path.as_uri())
        boxes = [lane.rect for lane in browser.find_elements(By.CSS_SELECTOR, ".lane")]
        assert len(boxes) == 4 and (boxes[0]["y"] == boxes[1]["y"]) is beside
        assert boxes[1]["width"] == pytest.approx(boxes[0]["width"] / 2, rel=0.02)
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(wide) <= 1
    nothing_wrong(browser)
    (link,) = browser.find_elements(By.CSS_SELECTOR, "a.csv")
    link.click()  # the page stays, and nothing is refused by its policy
    nothing_wrong(browser)
    assert browser.current_url == path.as_uri()
    assert link.get_attribute("download") == "rlprof-diff-phases.csv"
    kind, _, text = unquote(link.get_attribute("href")).partition(",")
    rows = list(csv.DictReader(io.StringIO(text)))
    shown = compare(one, two).phases
    assert kind.startswith("data:text/csv") and len(rows) == len(shown) > 3
    assert [(row["worker/phase"], row["before (ns)"]) for row in rows] == [
        (change.what, str(change.before_ns)) for change in shown
    ]


def test_a_name_in_a_csv_is_no_formula() -> None:
    changes = [Change("=HYPERLINK(1)", 1, None, None, False), Change("a,b", 100, 200, 0, True)]
    rows = list(csv.reader(io.StringIO(unquote(compare_page._csv(changes)).partition(",")[2])))
    assert rows[1:] == [
        ["'=HYPERLINK(1)", "1", "", "", "", "gone"],
        ["a,b", "100", "200", "1.0", "0", "slower"],
    ]


def test_a_kernel_is_zoomed_to(browser: Any, page: Path) -> None:
    """A click on its name leads to its longest call, which the pointer then names."""
    opened(browser, page)
    spans = json.loads(page.with_name("report.json").read_text())["kernel_spans"]
    name = "ncclDevKernel_AllReduce_Sum_bf16"
    longest = max(s[3] for s in spans["spans"] if spans["names"][s[1]] == name)
    button = browser.find_element(By.XPATH, f"//*[@id='kernels-table']//button[.='{name}']")
    browser.execute_script("arguments[0].click()", button)
    begin, end = gantt_view(browser)
    assert (end - begin) * 1000 == pytest.approx(5 * longest, rel=0.01)
    assert "worker=policy_worker" in browser.current_url
    canvas = browser.find_element(By.ID, "gantt-canvas")
    row = int(browser.execute_script("return rlprofGantt.rowOf()"))
    height = canvas.size["height"]
    x = 190 + (canvas.size["width"] - 198) / 2 - canvas.size["width"] / 2
    ActionChains(browser).move_to_element_with_offset(canvas, int(x), int(row + 10 - height / 2)).perform()
    tip = browser.find_element(By.ID, "tip").text
    assert tip.startswith(f"{name}: {duration(longest)}"), tip
    nothing_wrong(browser)


def test_kinds_of_idle_time_differ_without_their_colour(browser: Any, page: Path) -> None:
    opened(browser, page)
    for theme in ("light", "dark"):
        browser.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
        looks = browser.execute_script(
            "return [...document.querySelectorAll('#gpu-legend i')].slice(3).map(i => { const s ="
            " getComputedStyle(i); return s.backgroundImage.replace(/rgba?\\([^)]*\\)/g, '')"
            " + s.boxShadow; })"
        )
        assert len(looks) == len(set(looks)) == 4, looks


def test_links_to_the_timeline_work_or_are_not_there(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2)
    report(run, form="json", jobs=1, cache=False)
    opened(browser, run / "report.html")
    note = browser.find_element(By.ID, "timeline-note")
    assert note.find_elements(By.TAG_NAME, "a") == [] and "rlprof timeline 4711" in note.text
    assert CliRunner().invoke(timeline, [str(run), "-j", "1"]).exit_code == 0
    opened(browser, run / "report.html")
    links = browser.find_element(By.ID, "timeline-note").find_elements(By.TAG_NAME, "a")
    assert [link.text for link in links] == ["timeline.overview.pftrace", "timeline.ranks.zip"]
    assert all((run / link.text).is_file() for link in links)
    nothing_wrong(browser)
