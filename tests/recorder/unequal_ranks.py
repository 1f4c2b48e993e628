"""Four real gloo ranks whose steps are full of collectives: `python unequal_ranks.py FOLDER SLOW`.

Rank SLOW, none where that is -1, takes 1.4 times as long. Rank 0 writes a log at the end of each step. Each
rank is a fork; whoever starts this ends its process group.
"""

from __future__ import annotations

import itertools
import os
import sys
import time

import torch
import torch.distributed as dist

from rlprof_ops.runtime import profiler

RANKS, TURNS, TURN_S, LOG_S = 4, 6, 0.05, 0.03
TIMES = 1.4


def train(rank: int, slow: int) -> None:
    for _ in range(TURNS):
        time.sleep(TURN_S * (TIMES if rank == slow else 1.0))
        dist.all_reduce(torch.ones(8))
    if rank == 0:
        time.sleep(LOG_S)
    dist.barrier()


def run(folder: str, rank: int, slow: int) -> None:
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    prof = profiler.from_env(worker="policy_worker", rank=rank, world_size=RANKS)
    for step in itertools.count(1):
        with prof.step(step):
            with prof.range("logprob"):
                time.sleep(TURN_S)
                dist.all_reduce(torch.ones(8))
            with prof.range("train"):
                train(rank, slow)


def main(folder: str, slow: int) -> None:
    for rank in range(RANKS):
        if not os.fork():
            try:
                run(folder, rank, slow)
            finally:
                os._exit(1)
    for _ in range(RANKS):
        os.wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
