"""Each request that a V1 engine of vLLM finishes or aborts, from the process that makes its outputs.

`LLM`, `AsyncLLM` and `vllm serve` have one `OutputProcessor` in that process, also with statistics off, as
trainers have them. Where they are on, queued, scheduled and preempted are told too (vllm.v1.metrics.stats).
A pass of the engine costs two comparisons, and a look at its outputs while a request has no token yet or when
some have finished. What goes wrong is said once; then nothing is followed.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from rlprof_ops.runtime import request_count
from rlprof_ops.runtime.process.hooks import Intercept, Watch, attribute, follow
from rlprof_ops.runtime.request_log import EngineRequest, RequestLog, RequestTokens

_SAME_CLOCK_S = 5.0  # by which the engine's monotonic clock may be behind ours where both are one
_SECOND = 1_000_000_000


class _Open:
    """The requests of one OutputProcessor that are not done: its state, when it came, what its prompt has
    beside text; its first token's time.
    """

    def __init__(self) -> None:
        self.requests: dict[str, tuple[Any, int, Any]] = {}
        self.first: dict[str, float] = {}
        self.unbegun: set[str] = set()


class _Process:
    """What is followed in this process; a forked child begins anew."""

    def __init__(self) -> None:
        self.off = False
        self.came = self.done = 0
        self.log: RequestLog | None = None
        self.open: WeakKeyDictionary[Any, _Open] = WeakKeyDictionary()

    def of(self, processor: Any) -> _Open:
        found = self.open.get(processor)
        if found is None:
            found = self.open[processor] = _Open()
        return found

    def add(self, row: EngineRequest, tokens: RequestTokens | None) -> None:
        if self.log is None or self.log.pid != os.getpid():
            self.log = RequestLog("vllm")
        self.log.add(row, tokens)
        if self.log.off:
            self.stop()

    def stop(self) -> None:
        self.off = True
        self.open.clear()


_PROCESS = _Process()


def _or_off(action: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing once one call has failed; the hook says why it failed."""

    @functools.wraps(action)
    def call(*arguments: Any, **named: Any) -> Any:
        if _PROCESS.off:
            return None
        try:
            return action(*arguments, **named)
        except Exception:
            _PROCESS.stop()
            raise

    return call


def install(module: ModuleType) -> None:
    """Follow `OutputProcessor` of `vllm.v1.engine.output_processor`."""
    processor = attribute(module, "OutputProcessor")
    follow(processor, "add_request", Watch("vLLM's requests", _comes, _came))
    follow(processor, "process_outputs", Watch("vLLM's requests", _outputs, _put_out))
    follow(processor, "abort_requests", Intercept("vLLM's requests", finish=_aborted))


@_or_off
def _comes(processor: Any, request: Any, *_: object, **__: object) -> Any:
    return processor, request


@_or_off
def _came(token: tuple[Any, Any], error: BaseException | None) -> None:
    processor, request = token
    state = processor.request_states.get(request.request_id) if error is None else None
    if state is not None:
        mine = _PROCESS.of(processor)
        features = getattr(request, "mm_features", None)
        mine.requests[request.request_id] = state, int(request.arrival_time * _SECOND), features
        mine.unbegun.add(request.request_id)
        _PROCESS.came += 1
        if _PROCESS.came == 1:
            request_count.tell(_counts)


def _counts() -> tuple[int, int, int]:
    """As `request_count.tell` has it; from a thread beside those of the engine."""
    opened = [each for mine in list(_PROCESS.open.values()) for each in list(mine.requests.values())]
    return _PROCESS.came, _PROCESS.done, max((_tokens(state.detokenizer) for state, *_ in opened), default=0)


@_or_off
def _outputs(
    processor: Any,
    engine_core_outputs: Any,
    engine_core_timestamp: float | None = None,
    *_: object,
    **__: object,
) -> Any:
    mine = _PROCESS.of(processor)
    if mine.unbegun and engine_core_timestamp is not None:
        for each in mine.unbegun.intersection([output.request_id for output in engine_core_outputs]):
            mine.unbegun.discard(each)
            mine.first[each] = engine_core_timestamp
    return mine, processor, engine_core_outputs, engine_core_timestamp, len(processor.request_states)


@_or_off
def _put_out(token: tuple[Any, ...], error: BaseException | None) -> None:
    mine, processor, outputs, at_s, before = token
    states = processor.request_states
    if error is not None or len(states) >= before:
        return
    done = [each for each in outputs if each.request_id in mine.requests and each.request_id not in states]
    _tell(mine, [(each.request_id, str(each.finish_reason or "stop")) for each in done], at_s)


def _aborted(result: Any, arguments: tuple[Any, ...], _: object) -> Any:
    _tell_aborted(arguments[0], result)
    return result


@_or_off
def _tell_aborted(processor: Any, names: Iterable[str]) -> None:
    mine = _PROCESS.of(processor)
    _tell(mine, [(each, "abort") for each in names if each in mine.requests], None)


def _tell(mine: _Open, done: Iterable[tuple[str, str]], at_s: float | None) -> None:
    """Requests that are done, and why; `at_s`: when the engine said so, by its monotonic clock."""
    now_ns, now_s = time.time_ns(), time.monotonic()
    at_s = now_s if at_s is None else at_s
    # An engine on another node has another clock: then what it says now is as if it came without delay.
    zero_ns = now_ns - int((now_s if 0 <= now_s - at_s < _SAME_CLOCK_S else at_s) * _SECOND)

    def wall(seconds: float | None, since_ns: int = 0) -> int | None:
        at_ns = zero_ns + int((seconds or 0) * _SECOND)
        # What lies outside is of a clock that nothing tells: an abort comes without the engine's time.
        return at_ns if seconds and since_ns - _SECOND < at_ns < now_ns + _SECOND else None

    for name, reason in done:
        state, arrival_ns, features = mine.requests.pop(name)
        _PROCESS.done += 1
        mine.unbegun.discard(name)
        first = mine.first.pop(name, None)
        stats = state.stats
        child = "" if state.parent_req is None else f"#{state.request_index}"
        _PROCESS.add(
            EngineRequest(
                f"{getattr(state, 'external_req_id', name)}{child}",
                state.prompt_len or 0,
                _tokens(state.detokenizer),
                arrival_ns,
                wall(getattr(stats, "queued_ts", None), arrival_ns),
                wall(getattr(stats, "scheduled_ts", None), arrival_ns),
                wall(first, arrival_ns),
                wall(at_s) or now_ns,
                getattr(stats, "num_preemptions", None),
                reason,
            ),
            _asked_and_answered(state, features),
        )


def _asked_and_answered(state: Any, features: Any) -> RequestTokens | None:
    """None of a prompt that is not of tokens, and of a request for pooling."""
    prompt = getattr(state, "prompt_token_ids", None)
    if prompt is None or state.detokenizer is None:
        return None
    answer = getattr(state.detokenizer, "output_token_ids", ())
    return RequestTokens(prompt, answer, [str(each.identifier) for each in features or ()])


def _tokens(detokenizer: Any) -> int:
    if detokenizer is None:  # of a request for pooling
        return 0
    counted = getattr(detokenizer, "num_output_tokens", None)
    return counted() if counted is not None else len(detokenizer.output_token_ids)
