"""What is taken of vLLM's OutputProcessor, on one with its interface; `tests/trainers/test_requests.py` has
the real one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rlprof_ops.runtime.request_log import EngineRequest, RequestTokens
from rlprof_ops.trainers.vllm import adapter, finished_requests

MODULE = "vllm.v1.engine.output_processor"
SECOND = 1_000_000_000


class Detokenizer:
    def __init__(self) -> None:
        self.output_token_ids: list[int] = []


class OutputProcessor:
    """As vLLM's: `request_states` holds what is not done."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def add_request(self, request: Any, prompt: Any, parent_req: Any = None, request_index: int = 0) -> None:
        self.request_states[request.request_id] = SimpleNamespace(
            external_req_id=request.external_req_id,
            prompt_len=len(request.prompt_token_ids),
            prompt_token_ids=request.prompt_token_ids,
            detokenizer=Detokenizer(),
            parent_req=parent_req,
            request_index=request_index,
            stats=request.stats,
        )

    def process_outputs(self, engine_core_outputs: Any, engine_core_timestamp: Any = None) -> list[str]:
        for output in engine_core_outputs:
            state = self.request_states[output.request_id]
            state.detokenizer.output_token_ids += output.new_token_ids
            if output.finish_reason is not None or 99 in output.new_token_ids:  # 99: a stop string
                del self.request_states[output.request_id]
        return ["whatever", "it returns"]

    def abort_requests(self, request_ids: Any, internal: bool) -> list[str]:
        return [each for each in request_ids if self.request_states.pop(each, None) is not None]


class Log:
    """Takes rows in the place of the process's file."""

    def __init__(self, engine: str) -> None:
        self.rows: list[EngineRequest] = []
        self.tokens: list[RequestTokens | None] = []
        self.off, self.pid = False, finished_requests.os.getpid()

    def add(self, make: Any, *arguments: Any) -> None:
        row, tokens = make(*arguments)
        self.rows.append(row)
        self.tokens.append(tokens)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[OutputProcessor]:
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    monkeypatch.setattr(finished_requests, "RequestLog", Log)
    monkeypatch.setattr(finished_requests, "_PROCESS", finished_requests._Process())
    module = ModuleType(MODULE)
    module.OutputProcessor = type("OutputProcessor", (OutputProcessor,), dict(vars(OutputProcessor)))  # type: ignore[attr-defined]
    adapter.install(MODULE, module)
    yield module.OutputProcessor()


def rows() -> list[EngineRequest]:
    log = finished_requests._PROCESS.log
    return [] if log is None else log.rows  # type: ignore[attr-defined]


def comes(engine: OutputProcessor, name: str, stats: Any = None, **more: Any) -> None:
    engine.add_request(
        SimpleNamespace(
            request_id=f"{name}-7f3a", external_req_id=name, prompt_token_ids=[1, 2, 3], arrival_time=50.5,
            stats=stats, mm_features=[SimpleNamespace(identifier="an image")],
        ), "a prompt", **more,
    )  # fmt: skip


def output(name: str, *tokens: int, reason: str | None = None) -> Any:
    return SimpleNamespace(request_id=f"{name}-7f3a", new_token_ids=list(tokens), finish_reason=reason)


def test_a_request_is_told_when_it_is_done(engine: OutputProcessor) -> None:
    comes(engine, "a")
    comes(engine, "b")
    first_s = time.monotonic()
    engine.process_outputs([output("a", 1), output("b", 1)], first_s)
    assert rows() == []
    last_s = time.monotonic()
    assert engine.process_outputs([output("a", 2, reason="length"), output("b", 2)], last_s) == [
        "whatever", "it returns"
    ]  # fmt: skip
    [row] = rows()
    assert (row.id, row.prompt_tokens, row.tokens, row.reason) == ("a", 3, 2, "length")
    assert finished_requests._PROCESS.log.tokens == [([1, 2, 3], [1, 2], ["an image"])]  # type: ignore[union-attr]
    assert (row.arrival_ns, row.queued_ns, row.scheduled_ns, row.preemptions) == (
        50.5 * SECOND,
        None,
        None,
        None,
    )
    zero = time.time() - time.monotonic()
    assert row.first_token_ns is not None
    assert row.first_token_ns / SECOND == pytest.approx(first_s + zero, abs=0.005)
    assert row.finished_ns / SECOND == pytest.approx(last_s + zero, abs=0.005)


def test_with_statistics_the_queue_is_told_too(engine: OutputProcessor) -> None:
    now_s = time.monotonic()
    stats = SimpleNamespace(queued_ts=now_s - 3, scheduled_ts=now_s - 2, num_preemptions=4)
    comes(engine, "a", stats)
    engine.process_outputs([output("a", 1, reason="stop")], now_s)
    [row] = rows()
    assert row.queued_ns is not None and row.scheduled_ns is not None and row.first_token_ns is not None
    assert row.finished_ns - row.queued_ns == pytest.approx(3 * SECOND, abs=1000)
    assert row.finished_ns - row.scheduled_ns == pytest.approx(2 * SECOND, abs=1000)
    assert (row.first_token_ns, row.preemptions) == (row.finished_ns, 4)


def test_an_engine_on_another_node_has_another_clock(engine: OutputProcessor) -> None:
    comes(engine, "a")
    engine.process_outputs([output("a", 1)], 1_000.0)
    engine.process_outputs([output("a", 2, reason="stop")], 1_002.5)
    [row] = rows()
    assert row.finished_ns / SECOND == pytest.approx(time.time(), abs=5)
    assert row.first_token_ns is not None
    assert row.finished_ns - row.first_token_ns == pytest.approx(2.5 * SECOND, abs=1000)


def test_of_an_abort_there_no_time_is_told_that_nothing_tells(engine: OutputProcessor) -> None:
    comes(engine, "a")
    finished_requests._PROCESS.of(engine).requests["a-7f3a"].arrival_s = time.time()
    engine.process_outputs([output("a", 1)], 1_000_000_000.0)
    engine.abort_requests(["a-7f3a"], internal=True)
    [row] = rows()
    assert row.first_token_ns is None
    assert row.finished_ns / SECOND == pytest.approx(time.time(), abs=5)


def test_stop_strings_aborts_and_answers_of_one_prompt(engine: OutputProcessor) -> None:
    parent = SimpleNamespace()
    comes(engine, "stopped")
    comes(engine, "given up", parent_req=parent, request_index=1)
    engine.process_outputs([output("stopped", 1, 99), output("given up", 1)], time.monotonic())
    assert engine.abort_requests(["given up-7f3a", "unknown"], internal=True) == ["given up-7f3a"]
    assert [(row.id, row.tokens, row.reason) for row in rows()] == [
        ("stopped", 2, "stop"), ("given up#1", 1, "abort")
    ]  # fmt: skip
    assert not finished_requests._PROCESS.of(engine).requests
    assert not finished_requests._PROCESS.of(engine).unbegun


def test_requests_that_come_past_us_hide_none_of_ours(engine: OutputProcessor) -> None:
    """Of a subclass whose `add_request` never calls the one that is followed."""
    comes(engine, "a")
    engine.request_states["other-7f3a"] = SimpleNamespace(detokenizer=Detokenizer())
    engine.process_outputs([output("a", 1), output("other", 1)], 1.0)
    engine.process_outputs([output("a", 2, 99), output("other", 2)], 1.1)
    engine.process_outputs([output("other", 3, reason="stop")], 1.2)
    assert [(row.id, row.tokens, row.reason) for row in rows()] == [("a", 3, "stop")]


def test_a_request_that_the_engine_drops_is_told_as_aborted(engine: OutputProcessor) -> None:
    comes(engine, "a")
    comes(engine, "b")
    engine.process_outputs([output("a", 1), output("b", 1)], 1.0)
    del engine.request_states["a-7f3a"]
    engine.process_outputs([output("b", 2)], 1.1)
    assert [(row.id, row.tokens, row.reason) for row in rows()] == [("a", 1, "abort")]


def test_what_goes_wrong_is_said_once_and_the_engine_goes_on(
    engine: OutputProcessor, capsys: pytest.CaptureFixture[str]
) -> None:
    other = SimpleNamespace(request_id="a-7f3a", external_req_id="a", prompt_token_ids=[1], stats=None)
    engine.add_request(other, "a prompt")  # another version than ours: it has no time
    comes(engine, "b")
    outputs = [output("a", 1, reason="stop")]
    assert engine.process_outputs(outputs, time.monotonic()) == ["whatever", "it returns"]
    comes(engine, "c")
    engine.process_outputs([output("b", 1, reason="stop")], time.monotonic())
    assert engine.abort_requests(["c-7f3a"], internal=True) == ["c-7f3a"]
    assert rows() == [] and finished_requests._PROCESS.off
    assert capsys.readouterr().err.count("arrival_time") == 1


def test_off_means_untouched(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    monkeypatch.setenv("RLPROF_ENGINE_REQUESTS", "0")
    module = ModuleType(MODULE)
    module.OutputProcessor = OutputProcessor  # type: ignore[attr-defined]
    adapter.install(MODULE, module)
    assert not hasattr(OutputProcessor.process_outputs, "_rlprof_wrapped")


def test_its_requests_are_counted_for_windows(
    engine: OutputProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    monkeypatch.setattr(finished_requests.request_count, "tell", read.append)
    for name in "abc":
        comes(engine, name)
    [counts] = read
    assert counts() == (3, 0, 0)
    engine.process_outputs([output("a", 1, 2, 3), output("b", 1, 2)], 1.0)
    assert counts() == (3, 0, 3)
    engine.process_outputs([output("a", 4, reason="stop"), output("b", 3, 4)], 1.1)
    engine.abort_requests(["c-7f3a"], internal=True)
    assert counts() == (3, 2, 4)
    engine.process_outputs([output("b", 5, reason="length")], 1.2)
    assert counts() == (3, 3, 0)
