"""`python -m rlprof_ops.supervisor.gcs.gcs_probe IP:PORT`: asks Ray's GCS which nodes are alive, prints each
change.

A process of its own, because it imports ray, which the supervisor must not: a supervisor has to outlive a
broken Ray. The first line is a JSON object, `{"plugin": why it does not load, or null}`: the test wants ray
too, so it is made here, while Ray is starting. Each further line is a JSON list of the addresses of the nodes
that are alive. It ends when its standard input closes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from rlprof_ops import env_names

_PAUSE_SECONDS = 0.1


class _GcsClient:
    """Ray's inner client, the fast way: no driver is registered for it. It knows one cluster by its id and
    never takes up with the next one at the same address, which a second try of `ray start` makes: so it goes
    when it fails.
    """

    def __init__(self) -> None:
        self._client: Any = None

    def alive(self, address: str) -> list[str]:
        from ray._raylet import GcsClient

        try:
            self._client = self._client or GcsClient(address=address)
            nodes = self._client.get_all_node_info().values()
        except Exception:
            self._client = None
            raise
        return sorted(node.node_manager_address for node in nodes if node.state == 0)


def _alive_by_driver(address: str) -> list[str]:
    import ray  # the public way, for a Ray whose inner client has another shape

    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", namespace="rlprof-ready")
    return sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])


def _watch(address: str) -> None:
    ask = _GcsClient().alive
    last = None
    while True:
        try:
            alive = ask(address)
        except (ImportError, AttributeError, TypeError):
            ask = _alive_by_driver
            continue
        except Exception:  # the GCS is not up yet, or gone: ask again
            alive = []
        if alive != last:
            print(json.dumps(alive), flush=True)
            last = alive
        time.sleep(_PAUSE_SECONDS)


def main() -> None:
    from rlprof_ops.rayenv import load_problem

    asked = env_names.REQUEST_JSON in os.environ
    print(json.dumps({"plugin": load_problem() if asked else None}), flush=True)
    threading.Thread(target=_watch, args=(sys.argv[1],), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
