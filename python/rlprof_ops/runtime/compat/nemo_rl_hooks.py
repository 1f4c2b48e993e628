"""Profiler classes for the hooks that NeMo RL is moving to (NVIDIA-NeMo/RL #3573).

    export NRL_POLICY_PROFILER_CLASS=rlprof_ops.runtime.compat.nemo_rl_hooks.PolicyProfiler
    export NRL_ROLLOUT_PROFILER_CLASS=rlprof_ops.runtime.compat.nemo_rl_hooks.RolloutProfiler

NeMo RL makes one of each a worker with `(rank=…)` and calls begin, then finish or abort, then close. The
request decides what is profiled, as everywhere. A wrong order of calls is an error in the caller and raises;
a profiler that fails never does.
"""

from __future__ import annotations

import os
import re
import sys

from rlprof_ops import env_names
from rlprof_ops.runtime import profiler
from rlprof_ops.runtime.clock_file import ClockFile
from rlprof_ops.runtime.null_profiler import NULL_CONTEXT, NullContext
from rlprof_ops.runtime.process.event_log import log_once
from rlprof_ops.runtime.process.frames import local_values
from rlprof_ops.runtime.process.hooks import safely
from rlprof_ops.runtime.ranges.span import Span

_WORKER_CLASS = re.compile(r"(\w+(?:Policy|Value|Generation)Worker(?:V\d+)?)(?:Impl)?")
POLICY_WORKER = "policy_worker"
ROLLOUT_WORKER = "generation_worker"


def worker_name(rank: int, general: str) -> str:
    """The name of the worker that calls: the runtime env's, else the one that NeMo RL's own settings would
    match,
    from the class of the object that is making its profiler. `general` where the request names that one
    alone,
    and where no class tells it.
    """
    told = os.environ.get(env_names.WORKER)
    own = told or _class_name()
    if told or not own:
        return own or general
    try:
        request = profiler.request_from_env(os.environ)
    except ValueError:
        return own
    if request and not request.for_worker(own, rank) and request.for_worker(general, rank):
        return general
    return own


def _told_step() -> int | None:
    """The step that the driver told this node last; None where no driver tells its steps."""
    node_dir = os.environ.get(env_names.NODE_DIR)
    if not node_dir:
        return None
    try:
        return ClockFile(node_dir).read().step or None
    except OSError:
        return None


def _class_name() -> str:
    frame = sys._getframe(1)
    for _ in range(12):
        if frame is None:
            return ""
        match = _WORKER_CLASS.fullmatch(type(local_values(frame, "self")[0]).__name__)
        if match:
            words = match[1].replace("DTensor", "Dtensor").replace("SGLang", "Sglang")
            return "_".join(re.findall(r"[A-Z][a-z]*[0-9]*", words)).lower()
        frame = frame.f_back  # type: ignore[assignment]
    return ""


class _Steps:
    """At most one finish or abort for each begin."""

    def __init__(self, worker: str, rank: int, first_step: int = 1) -> None:
        self._profiler = profiler.from_env(worker=worker, rank=rank)
        self._step: int | None = None
        self._count = first_step - 1
        self._phase: Span | NullContext = NULL_CONTEXT

    def _begin(self, step: int | None, phase: str) -> None:
        if self._step is not None:
            raise RuntimeError(f"step {self._step} was begun and neither finished nor aborted")
        if type(step) is not int:
            step = _told_step()
        if step is None:
            log_once(
                "the hook tells no step number, so steps are counted from"
                f" {self._count + 1} in this process; after a resume pass first_step"
            )
        self._count = self._count + 1 if step is None else step
        self._step = self._count
        self._profiler.start_step(self._step)
        self._phase = self._profiler.range(phase)
        self._phase.__enter__()

    def _end(self, how: str, failed: bool) -> None:
        if self._step is None:
            raise RuntimeError(f"{how} without a begin before it")
        step, self._step = self._step, None
        self._phase.__exit__(RuntimeError if failed else None, None, None)
        if failed:
            self._profiler.abort_step()
        self._profiler.stop_step(step)

    def close(self) -> None:
        """End what is open. Calling it again changes nothing."""
        if self._step is not None:
            self._end("close", failed=True)
        self._profiler.close()


class PolicyProfiler(_Steps):
    """`NRL_POLICY_PROFILER_CLASS`: one training step from begin to finish."""

    def __init__(self, *, rank: int, worker: str | None = None, first_step: int = 1, **_: object) -> None:
        """`worker`: default is the NeMo RL worker that makes this; `first_step`: where counting begins
        when the
        hook tells no number.
        """
        super().__init__(worker or worker_name(rank, POLICY_WORKER), rank, first_step)

    def begin_train_step(self, step: int | None = None, *_: object, **__: object) -> None:
        """Training step `step` begins; without a number they are counted from `first_step`."""
        self._begin(step, "train")

    def finish_train_step(self, *_: object, **__: object) -> None:
        self._end("finish_train_step", failed=False)

    def abort_train_step(self, *_: object, **__: object) -> None:
        """The step failed; its window is saved as partial. Never raises over the training's
        own error.
        """
        if self._step is not None:
            self._end("abort_train_step", failed=True)


class RolloutProfiler(_Steps):
    """`NRL_ROLLOUT_PROFILER_CLASS`: one rollout from begin to finish; `step_id` is "step<N>/attempt<M>"."""

    def __init__(self, *, rank: int, worker: str | None = None, first_step: int = 1, **_: object) -> None:
        """`worker`: default is the NeMo RL worker that makes this; `first_step`: where counting begins
        when the
        hook tells no number.
        """
        super().__init__(worker or worker_name(rank, ROLLOUT_WORKER), rank, first_step)

    def begin_engine_initialization(self, *_: object, **__: object) -> Span | NullContext:
        """The engine is being built: a range, recorded when an open-ended window is open. The token is for
        the end.
        """
        token = self._profiler.range("engine_initialization")
        token.__enter__()
        return token

    def end_engine_initialization(self, token: Span | NullContext, *_: object, **__: object) -> None:
        token.__exit__(None, None, None)

    def begin_rollout(self, step_id: str | int | None = None, *_: object, **__: object) -> None:
        """Rollout of the step in `step_id`; where none can be read there, as without a number."""
        self._begin(safely("NeMo RL's rollout hook", step_number, step_id), "generation")

    def finish_rollout(self, *_: object, **__: object) -> None:
        self._end("finish_rollout", failed=False)

    def abort_rollout(self, *_: object, **__: object) -> None:
        if self._step is not None:
            self._end("abort_rollout", failed=True)


def step_number(step_id: str | int | None) -> int | None:
    """`"step7/attempt2"` -> 7; a number is itself; None -> None (counted). Raises `ValueError` for
    anything else.
    """
    if step_id is None or (isinstance(step_id, int) and not isinstance(step_id, bool)):
        return step_id
    match = re.fullmatch(r"step[ _-]?(\d+)(?:/attempt[ _-]?\d+)?", str(step_id))
    if not match:
        raise ValueError(f'step_id is {step_id!r}: expected "step<N>/attempt<M>" or a number')
    return int(match[1])
