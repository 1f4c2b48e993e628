"""Each request that a V1 engine of vLLM finishes or aborts, from the process that makes its outputs.

`LLM`, `AsyncLLM` and `vllm serve` have one `OutputProcessor` in that process, also with statistics off, as
trainers have them. Where they are on, queued, scheduled and preempted are told too (vllm.v1.metrics.stats).
A pass of the engine costs two comparisons, and a look at its outputs while a request has no token yet or when
some have finished. What is told of a request is taken then, and put into its row on the log's thread. What
goes wrong is said once; then nothing is followed.
"""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

from rlprof_ops.runtime import request_count
from rlprof_ops.runtime.process.hooks import Intercept, attribute, follow
from rlprof_ops.runtime.request_log import EngineRequest, RequestLog, RequestTokens

_SAME_CLOCK_S = 5.0  # by which the engine's monotonic clock may be behind ours where both are one
_SECOND = 1_000_000_000
_name = operator.attrgetter("request_id")


class _Request:
    """What is known of one when it comes, and the engine's time of its first token. Of its state only what a
    row is made of is kept: the state may hold much more, and a row is made when its request is long gone.
    """

    __slots__ = (
        "arrival_s", "detokenizer", "features", "first_s", "name", "prompt", "prompt_tokens", "stats",
    )  # fmt: skip

    def __init__(self, state: Any, came: Any) -> None:
        name = getattr(state, "external_req_id", came.request_id)
        self.name = name if state.parent_req is None else f"{name}#{state.request_index}"
        self.prompt_tokens: int = state.prompt_len or 0
        self.prompt = getattr(state, "prompt_token_ids", None)  # None of one that is not of tokens
        self.detokenizer = state.detokenizer  # None of a request for pooling
        self.stats = state.stats
        self.arrival_s: float = came.arrival_time
        self.features = getattr(came, "mm_features", None)
        self.first_s: float | None = None


class _Open:
    """The requests of one OutputProcessor that are not done, and those of them without a token. `left`: how
    many it had when it was last looked at.
    """

    def __init__(self, processor: Any) -> None:
        self.processor = ref(processor)
        self.requests: dict[str, _Request] = {}
        self.unbegun: set[str] = set()
        self.left = 0


class _Process:
    """What is followed in this process; a forked child begins anew."""

    def __init__(self) -> None:
        self.off = False
        self.came = self.done = 0
        self.log: RequestLog | None = None
        self.open: WeakKeyDictionary[Any, _Open] = WeakKeyDictionary()
        self.latest: _Open | None = None

    def of(self, processor: Any) -> _Open:
        latest = self.latest
        if latest is None or latest.processor() is not processor:
            latest = self.open.get(processor)
            if latest is None:
                latest = self.open[processor] = _Open(processor)
            self.latest = latest
        return latest

    def writer(self) -> RequestLog:
        if self.log is None or self.log.pid != os.getpid():
            self.log = RequestLog("vllm")
        elif self.log.off:
            self.stop()
        return self.log

    def stop(self) -> None:
        self.off = True
        self.latest = None
        self.open.clear()


_PROCESS = _Process()


def install(module: ModuleType) -> None:
    """Follow `OutputProcessor` of `vllm.v1.engine.output_processor`."""
    processor = attribute(module, "OutputProcessor")
    for name, finish in (("add_request", _came), ("process_outputs", _passed), ("abort_requests", _aborted)):
        follow(processor, name, Intercept("vLLM's requests", finish=finish, failed=_stop))


def _stop() -> None:
    _PROCESS.stop()


def _came(result: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """After `add_request(self, request, …)`."""
    processor = arguments[0]
    request = arguments[1] if len(arguments) > 1 else named["request"]
    states = processor.request_states
    state = None if _PROCESS.off else states.get(request.request_id)
    if state is not None:
        mine = _PROCESS.of(processor)
        mine.requests[request.request_id] = _Request(state, request)
        mine.unbegun.add(request.request_id)
        mine.left = len(states)
        _PROCESS.came += 1
        if _PROCESS.came == 1:
            request_count.tell(_counts)
    return result


def _counts() -> tuple[int, int, int]:
    """As `request_count.tell` has it; from a thread beside those of the engine, which may make another
    processor meanwhile: what `keyrefs` gives is a list of its own.
    """
    processors = [each for reference in _PROCESS.open.keyrefs() if (each := reference()) is not None]
    opened = [
        each
        for processor in processors
        if (mine := _PROCESS.open.get(processor)) is not None
        for each in list(mine.requests.values())
    ]
    return _PROCESS.came, _PROCESS.done, max((_tokens(each.detokenizer) for each in opened), default=0)


def _passed(result: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """After `process_outputs(self, engine_core_outputs, engine_core_timestamp=None, …)`."""
    if not _PROCESS.off:
        states = arguments[0].request_states
        mine = _PROCESS.of(arguments[0])
        left = len(states)
        if mine.unbegun or left != mine.left:
            _look(mine, states, *arguments[1:3], **named)
            mine.left = left
    return result


def _look(
    mine: _Open,
    states: Mapping[str, Any],
    engine_core_outputs: Any,
    engine_core_timestamp: float | None = None,
    **_: object,
) -> None:
    """Which requests have their first token now, and which are done."""
    if mine.unbegun and engine_core_timestamp is not None:
        for name in mine.unbegun.intersection(map(_name, engine_core_outputs)):
            mine.unbegun.discard(name)
            mine.requests[name].first_s = engine_core_timestamp
    gone = mine.left - len(states)
    if gone <= 0:
        return
    done = [
        (each.request_id, each.finish_reason)
        for each in engine_core_outputs
        if each.finish_reason is not None and each.request_id not in states
    ]
    if len(done) < gone:  # a string that ends an answer is found here, not in the engine
        reasons = {each.request_id: each.finish_reason or "stop" for each in engine_core_outputs}
        done = [(name, reasons.get(name, "abort")) for name in mine.requests if name not in states]
    _tell(mine, done, engine_core_timestamp)


def _aborted(result: Any, arguments: tuple[Any, ...], _: object) -> Any:
    """After `abort_requests(self, …)`, which returns the names of those that it aborted."""
    if not _PROCESS.off:
        mine = _PROCESS.of(arguments[0])
        _tell(mine, [(name, "abort") for name in result], None)
        mine.left = len(arguments[0].request_states)
    return result


def _tell(mine: _Open, done: Iterable[tuple[str, object]], at_s: float | None) -> None:
    """Have the log take requests that are done, and why; `at_s`: when the engine said so, by its clock."""
    now_ns, now_s, log = time.time_ns(), time.monotonic(), _PROCESS.writer()
    for name, reason in done:
        request = mine.requests.pop(name, None)
        if request is not None:
            mine.unbegun.discard(name)
            if request.features:  # images: the log takes their hashes
                request.features = [str(each.identifier) for each in request.features]
            _PROCESS.done += 1
            log.add(_row, request, reason, at_s, now_ns, now_s)


def _row(
    request: _Request, reason: object, at_s: float | None, now_ns: int, now_s: float
) -> tuple[EngineRequest, RequestTokens | None]:
    """A request's row, on the log's thread; `at_s` is of the engine's clock, `now_ns` and `now_s` of ours."""
    at_s = now_s if at_s is None else at_s
    # An engine on another node has another clock: then what it says now is as if it came without delay.
    zero_ns = now_ns - int((now_s if 0 <= now_s - at_s < _SAME_CLOCK_S else at_s) * _SECOND)

    def wall(seconds: float | None, since_ns: int = 0) -> int | None:
        if not seconds:
            return None
        at_ns = zero_ns + int(seconds * _SECOND)
        # What lies outside is of a clock that nothing tells: an abort comes without the engine's time.
        return at_ns if since_ns - _SECOND < at_ns < now_ns + _SECOND else None

    arrival_ns = int(request.arrival_s * _SECOND)
    answer = () if request.detokenizer is None else request.detokenizer.output_token_ids
    stats = request.stats
    row = EngineRequest(
        request.name,
        request.prompt_tokens,
        len(answer),
        arrival_ns,
        stats and wall(getattr(stats, "queued_ts", None), arrival_ns),
        stats and wall(getattr(stats, "scheduled_ts", None), arrival_ns),
        wall(request.first_s, arrival_ns),
        wall(at_s) or now_ns,
        stats and getattr(stats, "num_preemptions", None),
        str(reason),
    )
    if request.prompt is None or request.detokenizer is None:
        return row, None
    return row, RequestTokens(request.prompt, answer, request.features or ())


def _tokens(detokenizer: Any) -> int:
    if detokenizer is None:  # of a request for pooling
        return 0
    counted = getattr(detokenizer, "num_output_tokens", None)
    return counted() if counted is not None else len(detokenizer.output_token_ids)
