"""Each request that an engine of SGLang finishes or aborts, from the process that makes its answers.

`Engine` and `sglang.launch_server` have one `TokenizerManager` there, which knows when a request came, had
its first token, and was done. Where its messages carry the scheduler's times (`--enable-metrics`), queued and
scheduled are told too. A batch in which nothing is done costs a look at its reasons.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from rlprof_ops.runtime import request_log
from rlprof_ops.runtime.process.hooks import Watch, attribute, follow
from rlprof_ops.runtime.request_log import EngineRequest, RequestLog, RequestTokens

_WHO = "SGLang's requests"
_SECOND = 1_000_000_000
_WALL_S = 1e9  # times above are of the wall clock, as in older ones, others of `perf_counter`
_CHECKS = "HEALTH_CHECK"  # ids of requests that nobody asked


class _Process:
    """What is written in this process; a forked child begins anew."""

    log: RequestLog | None = None


def install(name: str, module: ModuleType) -> None:
    """Follow `TokenizerManager` of `sglang.srt.managers.tokenizer_manager`."""
    if not request_log.asked():
        return
    manager = attribute(module, "TokenizerManager")
    follow(manager, "_handle_batch_output", Watch(_WHO, _outputs, _put_out))
    follow(manager, "_handle_abort_req", Watch(_WHO, _aborts, _aborted))


def _outputs(manager: Any, batch: Any, *_: object, **__: object) -> Any:
    """The requests that this batch ends, with their states, of which the manager lets go."""
    states = manager.rid_to_state
    ended = [
        (place, name, states[name])
        for place, name in enumerate(batch.rids)
        if batch.finished_reasons[place] is not None and name in states and not name.startswith(_CHECKS)
    ]
    return (batch, ended) if ended and hasattr(batch, "completion_tokens") else None  # else it is embedded


def _put_out(token: tuple[Any, Sequence[tuple[int, str, Any]]], error: BaseException | None) -> None:
    batch, ended = token
    if error is not None:
        return
    retracted, scheduler = getattr(batch, "retraction_counts", None), getattr(batch, "time_stats", None)
    for place, name, state in ended:
        queue = scheduler[place] if isinstance(scheduler, list) else None
        _add(
            name,
            state,
            queue,
            prompt_tokens=batch.prompt_tokens[place],
            tokens=batch.completion_tokens[place],
            preemptions=retracted[place] if retracted else None,
            reason=_kind(batch.finished_reasons[place]),
        )


def _aborts(manager: Any, message: Any, *_: object, **__: object) -> Any:
    state = manager.rid_to_state.get(message.rid)
    return None if state is None or message.rid.startswith(_CHECKS) else (message.rid, state)


def _aborted(token: tuple[str, Any], error: BaseException | None) -> None:
    name, state = token
    if error is None:
        _add(name, state, None, len(_prompt(state) or ()), len(state.output_ids), None, "abort")


def _add(
    name: str,
    state: Any,
    queue: Any,
    prompt_tokens: int,
    tokens: int,
    preemptions: int | None,
    reason: str,
) -> None:
    now_ns = time.time_ns()
    zero_ns = now_ns - time.perf_counter_ns()

    def wall(of: Any, name: str) -> int | None:
        seconds = getattr(of, name, None)
        return int(seconds * _SECOND) + (zero_ns if seconds < _WALL_S else 0) if seconds else None

    mine = getattr(state, "time_stats", state)  # of the state itself in older ones
    prompt = _prompt(state)
    row = EngineRequest(
        name,
        prompt_tokens,
        tokens,
        wall(mine, "created_time") or now_ns,
        wall(queue, "wait_queue_entry_time"),
        wall(queue, "forward_entry_time"),
        wall(mine, "first_token_time"),
        wall(mine, "finished_time") or now_ns,
        preemptions,
        reason,
    )
    asked = None if prompt is None else RequestTokens(prompt, tuple(state.output_ids))
    _log().add(lambda: (row, asked))


def _log() -> RequestLog:
    log = _Process.log
    if log is None or log.pid != os.getpid():
        log = _Process.log = RequestLog("sglang")
    return log


def _prompt(state: Any) -> Sequence[int] | None:
    """The tokens of a prompt that came as tokens, as trainers send them; of a text nobody keeps them."""
    found = getattr(state.obj, "input_ids", None) or getattr(state, "prompt_token_ids", None)
    return list(found) if found and isinstance(found[0], int) else None


def _kind(reason: Any) -> str:
    return str(reason.get("type") or "stop") if isinstance(reason, dict) else str(reason)
