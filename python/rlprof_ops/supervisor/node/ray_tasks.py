"""What Ray's tasks that have not ended do, as a sentence, from the task events of its GCS, and to which nodes
it brings arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlprof_ops.words import duration

LEAST_S = 10.0
_SHOWN = 4
_DRIVER, _ENDED = 3, (11, 12)  # TaskType.DRIVER_TASK; TaskStatus.FINISHED and FAILED
_FETCHES, _RUNS = "has fetched its arguments for {}", "has run for {}"
# TaskStatus of Ray's common.proto -> what a task has done for so long.
_DOES = {
    1: "has waited {} for what another task makes",
    2: "has waited {} for a node, or for its arguments to come there",
    3: "has waited {} for room in the object store",
    4: _FETCHES,
    5: "has been on its way to a worker for {}",
    6: _FETCHES,
    7: "has stood in its actor's queue for {}",
    8: _RUNS,
    9: "has waited in ray.get for {}",
    10: "has waited in ray.wait for {}",
    13: _FETCHES,
}


def sentence(events: Iterable[Any], now_ns: int, fetching: Mapping[str, int] | None = None) -> str:
    """`events`: `TaskEvents` of ray.core.generated.gcs_pb2. Those that began last come first: for one of them
    the driver waits. `fetching`: nodes to which arguments of waiting tasks are brought, and since when (Unix
    ns). Empty where nothing has lasted for LEAST_S.
    """
    since: dict[tuple[str, str], list[int]] = {}
    for event in events:
        times = event.state_updates.state_ts_ns
        state = max(times, key=lambda each: (times[each], each), default=0)
        ended = any(each in times for each in _ENDED)
        if not ended and state in _DOES and event.task_info.type != _DRIVER:
            since.setdefault((event.task_info.name, _DOES[state]), []).append(times[state])
    long = [(min(times), what, len(times)) for what, times in since.items()]
    long = sorted((each for each in long if now_ns - each[0] >= LEAST_S * 1e9), reverse=True)
    tasks = [
        f"{name} {does.format(duration(now_ns - begun))}{f' ({count} tasks)' if count > 1 else ''}"
        for begun, (name, does), count in long
    ]
    nodes = [
        f"node {node} has fetched arguments of waiting tasks for {duration(now_ns - begun)}"
        for node, begun in (fetching or {}).items()
        if now_ns - begun >= LEAST_S * 1e9
    ]
    return "; ".join([*_few(tasks, "more"), *_few(nodes, "more such nodes")])


def _few(said: Sequence[str], more: str) -> list[str]:
    left = len(said) - _SHOWN
    return [*said[:_SHOWN], *([f"and {left} {more}"] if left > 0 else [])]
