"""Four gloo ranks in Ray actors on two nodes that hang, one cause after the other: `hung_actors.py CAUSE…`.

Each is ended when the job's recorder has found its hang, or after a while in which it has not. The last cause
is an actor that no node can take.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

RANKS, NEVER_PLACED = 4, "never_placed"
_SECONDS, _POLL_S = 150, 0.5
_RUN = Path(os.environ["RLPROF_RUN_DIR"])
_CAUSES = str(Path(__file__).parents[1] / "recorder")


@ray.remote(num_cpus=0)
class Rank:
    def pid(self) -> int:
        return os.getpid()

    def run(self, folder: str, cause: str, rank: int) -> None:
        sys.path.insert(0, _CAUSES)
        from hung_ranks import run_rank

        run_rank(folder, cause, rank, RANKS)


@ray.remote(num_cpus=0)
def name() -> str:
    return os.environ["RLPROF_NODE"]


@ray.remote(num_cpus=0)
def end(pid: int) -> None:
    """Kill an actor that may be stopped, and what it has started."""
    from rlprof_ops.host.processes import with_descendants

    for each in with_descendants(pid):
        os.kill(each, signal.SIGKILL)


@ray.remote(num_cpus=1000)
class Large:
    def answers(self) -> bool:
        return True


def found() -> list[dict[str, object]]:
    path = _RUN / "recorder/findings.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def hang(cause: str, nodes: list[NodeAffinitySchedulingStrategy]) -> None:
    """Ranks 0 and 1 are on the first node, 2 and 3 on the second."""
    folder = _RUN.parent / "ranks" / cause
    folder.mkdir(parents=True)
    here = [nodes[rank * len(nodes) // RANKS] for rank in range(RANKS)]
    ranks = [Rank.options(scheduling_strategy=each).remote() for each in here]
    pids = ray.get([rank.pid.remote() for rank in ranks])
    before, until = len(found()), time.monotonic() + _SECONDS
    waiting = [rank.run.remote(str(folder), cause, number) for number, rank in enumerate(ranks)]
    while len(found()) == before and time.monotonic() < until:
        time.sleep(_POLL_S)
    said = found()[before:] or [{"text": "nothing was said"}]
    print("cause:", json.dumps([cause, said]), flush=True)
    ray.get([end.options(scheduling_strategy=each).remote(pid) for each, pid in zip(here, pids, strict=True)])
    ray.wait(waiting, num_returns=RANKS, timeout=60)


def never_placed() -> None:
    began = time.monotonic()
    ray.wait([Large.remote().answers.remote()], timeout=1)
    said = ""
    while not said and time.monotonic() < began + _SECONDS:
        time.sleep(_POLL_S)
        said = json.loads((_RUN / "run.json").read_text()).get("waiting", "")
    finding = {"text": f"the driver waits: {said}", "evidence": {"still_s": time.monotonic() - began}}
    print("cause:", json.dumps([NEVER_PLACED, [finding]]), flush=True)


def main(causes: list[str]) -> None:
    ray.init()
    on = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes()]
    named = dict(
        zip(ray.get([name.options(scheduling_strategy=each).remote() for each in on]), on, strict=True)
    )
    for cause in causes:
        if cause == NEVER_PLACED:
            never_placed()
        else:
            hang(cause, [named[each] for each in sorted(named)])


if __name__ == "__main__":
    main(sys.argv[1:])
