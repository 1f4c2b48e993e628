"""Four real gloo ranks with two trainers, one after the other: `python second_trainer.py FOLDER`.

Each trainer counts its steps from 1. In the second one rank 2 takes three times as long
before the ranks meet.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterable

import torch
import torch.distributed as dist

from rlprof_ops.runtime import profiler

RANKS, SLOW = 4, 2
FIRST_STEPS = 40
WORK_S = 0.1  # far above what a busy machine puts a rank aside for


def train(rank: int, steps: Iterable[int], slow: bool) -> None:
    prof = profiler.from_env(worker="trainer", rank=rank, world_size=RANKS)
    for step in steps:
        with prof.step(step):
            with prof.range("forward"):
                time.sleep(WORK_S * (3 if slow and rank == SLOW else 1))
            dist.all_reduce(torch.ones(8))


def run(folder: str, rank: int) -> None:
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    train(rank, range(1, FIRST_STEPS + 1), slow=False)
    train(rank, itertools.count(1), slow=True)


def main(folder: str) -> None:
    for rank in range(RANKS):
        if not os.fork():
            try:
                run(folder, rank)
            finally:
                os._exit(1)
    for _ in range(RANKS):
        os.wait()


if __name__ == "__main__":
    main(sys.argv[1])
