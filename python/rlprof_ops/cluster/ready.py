"""`python -m rlprof_ops.cluster.ready IP:PORT`: asks Ray's GCS which nodes are alive, prints each change.

A process of its own, because it imports ray, which the supervisor must not: a supervisor has to outlive a broken Ray.
Each line is a JSON list of the addresses of the nodes that are alive. It ends when its standard input closes.
"""

from __future__ import annotations

import json
import sys
import threading
import time

_PAUSE_SECONDS = 0.1


def _alive_by_gcs_client(address: str) -> list[str]:
    from ray._raylet import GcsClient  # the fast way: no driver is registered for it

    global _CLIENT
    if _CLIENT is None:
        _CLIENT = GcsClient(address=address)
    nodes = _CLIENT.get_all_node_info().values()
    return sorted(node.node_manager_address for node in nodes if node.state == 0)


_CLIENT = None


def _alive_by_driver(address: str) -> list[str]:
    import ray  # the public way, for a Ray whose inner client has another shape

    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", namespace="rlprof-ready")
    return sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])


def _watch(address: str) -> None:
    ask = _alive_by_gcs_client
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
    import ray  # noqa: F401  imported while the head is still starting

    threading.Thread(target=_watch, args=(sys.argv[1],), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
