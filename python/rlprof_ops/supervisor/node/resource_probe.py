"""`python -m rlprof_ops.supervisor.node.resource_probe IP:PORT`: asks Ray what resources somebody waits for.

A process of its own, because it imports ray, which the supervisor must not. Each line of its output is a JSON
string, printed when it changes: what is waited for, as a sentence, or "" when nothing is. For each line of
its input it prints once `{"tasks": …}`, what Ray's tasks do that have not ended. It ends when its standard
input closes.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlprof_ops.supervisor.node import ray_tasks

POLL_S = 5.0
IMPOSSIBLE_S = 15.0  # a node may be about to join
BUSY_S = 45.0  # others may be about to end
_SHOWN = 3
_FETCHES = "Pulling task arguments."  # of a node's activity, as its raylet has it
_NODE = "slurm_node:"  # a resource that our nodes have, with their name
_HIDDEN = ("node:", _NODE, "bundle", "memory", "object_store_memory", "implicit_resource")


@dataclass(frozen=True)
class Demand:
    """`count` actors or tasks, or bundles of a placement group, that each ask for `asks`."""

    asks: tuple[tuple[str, float], ...]
    count: int
    group: bool = False

    @classmethod
    def of(cls, asks: Mapping[str, float], count: int, group: bool = False) -> Demand:
        kept = {name: value for name, value in asks.items() if value and not name.startswith(_HIDDEN)}
        return cls(tuple(sorted(kept.items())), count, group)

    def fits(self, node: Mapping[str, float]) -> bool:
        return all(node.get(name, 0) >= value for name, value in self.asks)


class UnmetDemands:
    """Which demands stay unmet, and since when. Pure but for the clock that is given."""

    def __init__(self) -> None:
        self._since: dict[Demand, float] = {}

    def sentence(self, demands: Sequence[Demand], nodes: Sequence[Mapping[str, float]], now: float) -> str:
        """What is waited for; "" while nothing is, or not for long. `nodes`: each node's resources, used or
        not.
        """
        # A queue of tasks that gets shorter or longer waits for nothing: its count is part of what is timed.
        self._since = {demand: self._since.get(demand, now) for demand in demands}
        parts = []
        for demand in demands:
            possible = any(demand.fits(node) for node in nodes)
            if now - self._since[demand] >= (BUSY_S if possible else IMPOSSIBLE_S):
                parts.append(_part(demand, nodes, possible))
        more = [f"and {len(parts) - _SHOWN} more"] if len(parts) > _SHOWN else []
        return "; ".join([*parts[:_SHOWN], *more])


def _part(demand: Demand, nodes: Sequence[Mapping[str, float]], possible: bool) -> str:
    what = "a placement group's bundle" if demand.group else "an actor or task"
    if demand.count > 1:
        what = f"{demand.count} {'bundles of a placement group' if demand.group else 'actors or tasks'}"
    asks = " and ".join(f"{value:g} {name}" for name, value in demand.asks) or "no named resource"
    verb = "asks" if demand.count == 1 else "ask"
    each = "" if demand.count == 1 else " each"
    if possible:
        has = ", ".join(f"{sum(node.get(name, 0) for node in nodes):g} {name}" for name, _ in demand.asks)
        return f"{what} {verb} for {asks}{each}; all that fits is in use (Ray has {has})"
    most = ", ".join(
        f"{max((node.get(name, 0) for node in nodes), default=0):g} {name}" for name, _ in demand.asks
    )
    return f"{what} {verb} for {asks}{each}, and no node has that (the largest has {most})"


def _demands(state: Any) -> list[Demand]:
    """From `ClusterResourceState` of ray.core.generated.autoscaler_pb2, Ray 2.9 and later."""
    found = [
        Demand.of(dict(row.request.resources_bundle), row.count) for row in state.pending_resource_requests
    ]
    for gang in state.pending_gang_resource_requests:
        bundles = [dict(bundle.resources_bundle) for bundle in gang.requests]
        for selector in () if bundles else getattr(gang, "bundle_selectors", ()):  # its name since Ray 2.50
            bundles += [dict(bundle.resources_bundle) for bundle in selector.resource_requests]
        counts: dict[Demand, int] = {}
        for bundle in bundles:
            one = Demand.of(bundle, 1, group=True)
            counts[one] = counts.get(one, 0) + 1
        found += [Demand(one.asks, count, True) for one, count in counts.items()]
    return [demand for demand in found if demand.count]


class Fetching:
    """To which nodes arguments of waiting tasks are brought, and since when (Unix ns): since the first of the
    looks that all say so.
    """

    def __init__(self) -> None:
        self.since_ns: dict[str, int] = {}

    def look(self, nodes: Iterable[Any], now_ns: int) -> None:
        """`nodes`: `NodeState` of ray.core.generated.autoscaler_pb2. Ray 2.49 does not tell it, 2.60 does."""
        there = [node for node in nodes if _FETCHES in getattr(node, "node_activity", ())]
        self.since_ns = {name: self.since_ns.get(name, now_ns) for name in map(_name, there)}


def _name(node: Any) -> str:
    ours = (each.removeprefix(_NODE) for each in node.total_resources if each.startswith(_NODE))
    return next(ours, str(node.node_ip_address))


def _ask(client: Any, fetching: Fetching) -> tuple[list[Demand], list[dict[str, float]]]:
    from ray.core.generated import autoscaler_pb2

    reply = autoscaler_pb2.GetClusterResourceStateReply()
    reply.ParseFromString(client.get_cluster_resource_state(timeout_s=10))
    state = reply.cluster_resource_state
    dead = autoscaler_pb2.NodeStatus.DEAD
    there = [node for node in state.node_states if node.status != dead]
    fetching.look(there, time.time_ns())
    return _demands(state), [dict(node.total_resources) for node in there]


def _tasks(address: str, fetching: Fetching) -> str:
    """Asked for rarely: the GCS sends every task that it remembers."""
    from ray._raylet import GcsClientOptions, GlobalStateAccessor
    from ray.core.generated.gcs_pb2 import TaskEvents

    accessor = GlobalStateAccessor(
        GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=True)
    )
    accessor.connect()
    events = map(TaskEvents.FromString, accessor.get_task_events())
    return ray_tasks.sentence(events, time.time_ns(), fetching.since_ns)


def _answer(address: str, fetching: Fetching) -> None:
    for _ in sys.stdin:
        with contextlib.suppress(Exception):  # a Ray of another shape, a GCS that is gone: nothing is said
            if said := _tasks(address, fetching):
                _say({"tasks": said})


def _say(what: object) -> None:
    """A line at once: both threads do."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _watch(address: str, fetching: Fetching) -> None:
    from ray._raylet import GcsClient

    client, waiting, last = GcsClient(address=address), UnmetDemands(), ""
    while True:
        try:
            said = waiting.sentence(*_ask(client, fetching), time.monotonic())
        except (ImportError, AttributeError, TypeError):
            return  # a Ray whose inner client has another shape: nothing is said
        except Exception:  # the GCS is busy, or gone: ask again
            said = last
        if said != last:
            _say(said)
            last = said
        time.sleep(POLL_S)


if __name__ == "__main__":
    found = Fetching()
    threading.Thread(target=_watch, args=(sys.argv[1], found), daemon=True).start()
    _answer(sys.argv[1], found)
