"""Generation request by request: every number against requests whose times are made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of, report, typed  # noqa: E402
from tests.analyze.whole_run import dealt_requests as made  # noqa: E402
from tests.analyze.whole_run.dealt_requests import Dealt, dealt, grouped, steps, uneven  # noqa: E402

from rlprof_ops.analyze.output.rollout_lines import rollout_lines  # noqa: E402
from rlprof_ops.analyze.whole_run import last_requests  # noqa: E402
from rlprof_ops.analyze.whole_run.section import whole_run  # noqa: E402
from rlprof_ops.runtime import request_log  # noqa: E402


def test_every_number_is_that_of_the_requests(tmp_path: Path) -> None:
    uneven(tmp_path)
    answer = answer_of(tmp_path, jobs=1)
    found = answer["whole_run"]["requests"]
    assert (found["requests"], found["outside"], found["cut"], found["told"]) == (3 * 40, 2, False, 3)
    assert (found["phase_ms"], found["step_ms"]) == (10_000, 12_000)
    # 20 requests on each replica: one every 0.2 s; the last of rollout 1 after 9.5 s
    done = {row["share"]: (row["left"], row["requests"]) for row in found["done"]}
    assert done == {0.5: (0.75, 20), 0.9: (0.59, 4), 0.95: (0.57, 2)}
    [first, second] = found["replicas"]
    assert (first["worker"], first["rank"], first["node"]) == ("rollout", 0, "n1")
    assert (first["requests"], first["tokens"], first["end"], first["idle"]) == (20, 200, 0.4, 0.6)
    assert (second["requests"], second["tokens"]) == (20, 19 * 10 + 1000)
    assert (second["end"], second["idle"]) == (0.95, 0.05)
    for number, step in enumerate(found["steps"], 1):
        assert (step["step"], step["requests"], step["prompt_tokens"], step["tokens"]) == (
            number,
            40,
            80,
            1390,
        )
        assert (step["median_tokens"], step["imbalance"]) == (10, round(0.95 / ((0.95 + 0.4) / 2), 3))
        assert step["left"] == [0.75, 0.59, 0.57, None]
        last = step["last"][0]
        assert (last["id"], last["worker"], last["rank"]) == (f"late-{number}", "rollout", 1)
        assert (last["tokens"], last["prompt_tokens"], last["ms"]) == (1000, 2, 9500)
        assert (last["queued_ms"], last["preemptions"], last["reason"]) == (100, 1, "length")
        assert len(step["last"]) == 3 and step["last"][1]["queued_ms"] is None


def test_what_is_said_of_them(tmp_path: Path) -> None:
    uneven(tmp_path)
    answer = answer_of(tmp_path, jobs=1)
    findings = {row["kind"]: row for row in answer["findings"]}
    late = findings["last_requests"]
    assert late["text"] == (
        "Generation waits for its last requests: when 95 % were done it went on for 5.70 s a step (57 % of"
        " the phase, 48 % of the step), mean of 3 steps. The longest wait, in step 1, is for request"
        " late-1 of rollout 1: it made 1000 tokens in 9.50 s and was queued for 100 ms, the median one 10."
        " It was preempted 1 time."
    )
    assert (late["saves_ns"], late["step"]) == (5_700_000_000, 1)
    assert findings["uneven_replicas"]["text"] == (
        "rollout 0 is idle for 60 % of generation because the requests of rollout 1 are longer: 60 tokens"
        " each against 10, mean of 3 steps."
    )
    line, answers, replay = rollout_lines(typed(answer))
    # requests of one length that take 0.2 to 9.5 s: no queue does that, and the replay's error says so
    assert replay.startswith(
        "By replay of the requests of rollout in 3 steps (7.79 s of 9.50 s measured), a step"
    )
    assert "a limit of 10 tokens (2.5 % of the answers cut)" in replay and "the replica with" not in replay
    assert answers == (
        "Answers: median 10 tokens, 90 % at most 10, 99 % at most 1,000, the longest 1,000; 2.5 % were ended"
        " by a limit; mean 35 in step 1, 35 in the last; 3 requests preempted, 3 times."
    )
    assert line.startswith(
        "Request by request, mean of 3 steps: 40 requests on 2 replicas; the phase went on"
    )
    assert "5.70 s from 95 % on (57 % of it)" in line


def test_answers_that_wait_for_one_of_their_group_and_turns_of_a_sample(tmp_path: Path) -> None:
    grouped(tmp_path)
    answer = answer_of(tmp_path, jobs=1)
    [text] = [row["text"] for row in answer["findings"] if row["kind"] == "last_requests"]
    assert text.endswith(
        "request 1-3-7t3 of rollout 1: it made 90 tokens in 9.00 s, the median one 10. It is turn 3; 4.00 s"
        " went by between the turns. 7 of the 8 answers to its prompt were done 15.1 s before."
    )
    for number, step in enumerate(answer["whole_run"]["requests"]["steps"], 1):
        groups = step["groups"]
        assert (groups["count"], groups["answers"]) == (4, 8)
        assert groups["alone_ms"] == pytest.approx((3 * 30 + 15_070) / 4, abs=0.1)
        [worst, *others] = groups["last"]
        assert {name: worst[name] for name in ("id", "rank", "answers", "turns", "tokens")} == {
            "id": f"{number}-3-7t3", "rank": 1, "answers": 8, "turns": 3, "tokens": 10 + 20 + 90
        }  # fmt: skip
        assert (worst["alone_ms"], worst["between_ms"], worst["median_tokens"]) == (15_070, 4_000, 10)
        assert worst["spread_ms"] == 15_250 and [row["alone_ms"] for row in others] == [30, 30]
        last = step["last"][0]
        assert (last["turn"], last["answers"], last["alone_ms"]) == (3, 8, 15_070)


def test_requests_of_an_older_version_have_no_groups(tmp_path: Path) -> None:
    path = uneven(tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row[:10] if isinstance(row, list) else row) + "\n" for row in rows))
    found = whole_run(tmp_path)
    assert found is not None and found.requests is not None
    assert found.requests.requests == 120 and found.requests.steps[0].groups is None


@pytest.mark.parametrize("seed", range(10))
def test_the_planted_straggler_of_a_group_is_named_first(tmp_path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    planted, bases = int(draw.integers(16)), draw.uniform(1.0, 8.0, 16).tolist()
    steps(tmp_path, 1, 18.0, 19.0)
    for rank in range(2):
        rows = []
        for prompt, base in enumerate(bases):
            for n in range(4):
                late = 5.0 if (prompt, n, rank) == (planted, 3, 1) else 0.0
                end = base + float(draw.uniform(0, 2.0)) + late
                rows.append(Dealt(f"{prompt}-{n}-{rank}", 1, 0.0, end, 10, group=prompt))
        dealt(tmp_path, rank, rows)
    found = whole_run(tmp_path)
    assert found is not None and found.requests is not None and found.requests.steps[0].groups is not None
    worst = found.requests.steps[0].groups.last[0]
    assert (worst.id, worst.rank, worst.answers) == (f"{planted}-3-1", 1, 8) and worst.alone_ms >= 3000


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (
            10,
            30,
            "more requests: 30 against 10, mean of 1 step. Evenly dealt out, the phase could end 5.",
        ),
        (20, 20, ""),
    ],
)
def test_why_a_replica_is_idle(tmp_path: Path, mine: int, theirs: int, said: str) -> None:
    """A replica with fewer requests, and one that is as quick as the other: of that nothing is said."""
    steps(tmp_path, 1, theirs / 2, theirs / 2)
    for rank, count in enumerate((mine, theirs)):
        rows = [Dealt(f"{rank}-{n}", 1, 0.0, n / 2, 10, (n - 1) / 2) for n in range(1, count + 1)]
        dealt(tmp_path, rank, rows)
    findings = {row["kind"]: row["text"] for row in answer_of(tmp_path, jobs=1)["findings"]}
    assert "last_requests" not in findings  # they end evenly
    assert said in findings.get("uneven_replicas", "") and bool(said) == ("uneven_replicas" in findings)


@pytest.mark.parametrize("seed", range(10))
def test_a_planted_last_request_and_an_idle_replica_are_named(tmp_path: Path, seed: int) -> None:
    """Lengths as of a policy, 64 requests on each of four replicas; a short request comes last of all."""
    draw = np.random.default_rng(seed)
    rank, idle = draw.choice(4, 2, replace=False).tolist()
    steps(tmp_path, 1, 21.0, 24.0)
    for each in range(4):
        seconds = np.minimum(draw.lognormal(0.0, 0.6, 64), 6.0) * (0.2 if each == idle else 1.0)
        rows = [Dealt(f"{each}-{n}", 1, 0.0, s, round(100 * s)) for n, s in enumerate(seconds.tolist())]
        if each == rank:
            rows += [Dealt("planted", 1, 0.0, 20.0, 2000), Dealt("short", 1, 19.9, 20.1, 10)]
        dealt(tmp_path, each, rows)
    findings = {row["kind"]: row["text"] for row in answer_of(tmp_path, jobs=1)["findings"]}
    assert f"request planted of rollout {rank}: it made 2000 tokens" in findings["last_requests"]
    assert findings["uneven_replicas"].startswith(f"rollout {idle} is idle for 9")
    assert f"because the requests of rollout {rank} are longer" in findings["uneven_replicas"]


def test_without_marked_generation_the_step_counts(tmp_path: Path) -> None:
    steps(tmp_path, 2, phase_s=0.0)
    dealt(tmp_path, 0, [Dealt(f"{s}-{n}", s, 0.0, 1.0 + n, 5) for s in (1, 2) for n in range(4)])
    found = whole_run(tmp_path)
    assert found is not None and found.requests is not None
    assert [(row.step, row.requests, row.phase_ms) for row in found.requests.steps] == [
        (1, 4, 12_000), (2, 4, 12_000)
    ]  # fmt: skip


@pytest.mark.parametrize("apart_s", [0.0, 0.06])
def test_a_request_is_done_in_one_step_where_the_next_one_follows_at_once(
    tmp_path: Path, apart_s: float
) -> None:
    step_s = made.STEP_NS / made.SECOND
    steps(tmp_path, 3, step_s - apart_s if apart_s else 0.0, step_s)
    dealt(tmp_path, 0, [Dealt(f"{s}-{n}", s, 0.0, 0.03 + n, 5) for s in (1, 2, 3) for n in range(4)])
    found = whole_run(tmp_path)
    assert found is not None and found.requests is not None and found.requests.lengths is not None
    assert (found.requests.requests, found.requests.outside) == (12, 0)
    assert [row.requests for row in found.requests.steps] == [4, 4, 4]
    assert sum(found.requests.lengths.counts) == 12


def test_a_file_that_is_full_or_broken_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = uneven(tmp_path)
    with path.open("a") as file:
        file.write('["half of a li\n["wrong", "types"]\n[]\nnull\n{"event": "full", "t_ns": 1}\n')
    (path.parent / "8.jsonl").write_text("no line of ours\n")
    found = whole_run(tmp_path)
    assert found is not None and found.requests is not None
    assert (found.requests.requests, found.requests.cut) == (120, True)


def test_a_run_without_requests_has_none(tmp_path: Path) -> None:
    steps(tmp_path, 2)
    found = whole_run(tmp_path)
    assert found is not None and found.requests is None


def test_a_long_run_keeps_the_steps_with_the_longest_tails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_requests, "MOST_STEPS", 2)
    steps(tmp_path, 6)
    rows = [Dealt(f"{s}-{n}", s, 0.0, 1.0 if n < 29 else float(s), 5) for s in range(1, 7) for n in range(30)]
    dealt(tmp_path, 0, rows)
    found = whole_run(tmp_path)
    assert found is not None and found.requests is not None
    assert [row.step for row in found.requests.steps] == [5, 6] and found.requests.told == 6


def test_what_the_engine_writes_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps(tmp_path, 1)
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path / "nodes" / "n1"))
    monkeypatch.setenv("RLPROF_WORKER", "rollout")
    log = request_log.RequestLog("vllm")
    begin = made.ZERO_NS + made.STEP_NS
    row = request_log.EngineRequest("a", 1, 2, begin, None, None, None, begin + 10**9, None, "stop")
    log.add(lambda: (row, None))
    log.flush()
    log.off = True
    found = whole_run(tmp_path)
    assert found is not None and found.requests is not None
    assert found.requests.steps[0].last[0].id == "a"
    assert json.loads(next(tmp_path.glob("nodes/n1/requests/*")).read_text().splitlines()[1])[0] == "a"


@pytest.mark.chromium
def test_the_page_names_the_last_requests(tmp_path: Path) -> None:
    pytest.importorskip("selenium")
    from selenium.webdriver.common.by import By
    from tests.analyze.page.test_page import chromium, nothing_wrong, opened

    uneven(tmp_path)
    report(tmp_path, form="json", jobs=1)
    browser = chromium(tmp_path / "chromium")
    try:
        opened(browser, tmp_path / "report.html")
        cells = [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "#requests-last tbody td")]
        assert cells[:4] == ["1", "late-1", "rollout 1", "1,000"]
        assert "57 %" in cells
        cells = [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "#requests-replicas tbody td")]
        assert cells[0] == "rollout 0" and "60 %" in cells
        titles = [title.text for title in browser.find_elements(By.CSS_SELECTOR, "#requests-lengths h3")]
        assert titles == [
            "Answers by length: 10 tokens in the median, 90 % at most 10, 99 % at most 1,000, the longest"
            " 1,000; 2.5 % ended by a limit",
            "Lengths of answers over the steps, in tokens",
        ]
        nothing_wrong(browser)
    finally:
        browser.quit()


@pytest.mark.chromium
def test_the_page_names_the_groups_that_waited(tmp_path: Path) -> None:
    pytest.importorskip("selenium")
    from selenium.webdriver.common.by import By
    from tests.analyze.page.test_page import chromium, nothing_wrong, opened

    grouped(tmp_path)
    report(tmp_path, form="json", jobs=1)
    browser = chromium(tmp_path / "chromium")
    try:
        opened(browser, tmp_path / "report.html")
        cells = [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "#requests-groups tbody td")]
        assert cells[:10] == [
            "1", "1-3-7t3", "rollout 1", "8", "15.1 s", "15.3 s", "120", "10", "3", "4.00 s"
        ]  # fmt: skip
        nothing_wrong(browser)
    finally:
        browser.quit()


@pytest.mark.parametrize("seed", range(10))
def test_a_planted_slow_tool_is_named(tmp_path: Path, seed: int) -> None:
    """64 samples of two turns on each of two replicas; the tool between the turns of one takes 12 s."""
    draw = np.random.default_rng(seed)
    rank, planted = int(draw.integers(2)), int(draw.integers(64))
    steps(tmp_path, 1, 18.0, 20.0)
    for each in range(2):
        rows = []
        for n in range(64):
            tool = 12.0 if (each, n) == (rank, planted) else float(draw.uniform(0.1, 0.5))
            first, second = (np.minimum(draw.lognormal(-0.5, 0.5, 2), 2.0)).tolist()
            again = first + tool
            rows.append(Dealt(f"{each}-{n}", 1, 0.0, first, 50, group=n))
            rows.append(Dealt(f"{each}-{n}b", 1, again, again + second, 50, None, n, 2, f"{each}-{n}"))
        dealt(tmp_path, each, rows)
    answer = answer_of(tmp_path, jobs=1)
    [text] = [row["text"] for row in answer["findings"] if row["kind"] == "last_requests"]
    assert f"request {rank}-{planted}b of rollout {rank}:" in text
    assert "It is turn 2; 12.0 s went by between the turns." in text
    [turns] = answer["whole_run"]["requests"]["turns"]
    assert turns["longest_ms"] == pytest.approx(12_000, abs=1)
