"""The two kinds of Ray actors. Each has a profiler; its phases are called by the controller, one remote
call each.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import ray
import torch
from torch import distributed as dist

from rlprof_ops.demo import grpo, toy_task
from rlprof_ops.demo.network import bind_gloo_to
from rlprof_ops.demo.policy import Policy, logprobs, new_policy, sample
from rlprof_ops.demo.settings import DemoSettings
from rlprof_ops.demo.stopwatch import PhaseTimer
from rlprof_ops.runtime import profiler

Batch = dict[
    str, torch.Tensor
]  # prompt (B, P), completion (B, C), mask (B, C), rewards (B,); groups adjacent
Weights = dict[str, torch.Tensor]  # by parameter name


class DemoWorker:
    """What both kinds share: who and where it is, its steps, its profiler."""

    name = ""

    def __init__(self, rank: int, world_size: int, settings: DemoSettings) -> None:
        torch.set_num_threads(1)
        self.rank, self.world_size, self.settings = rank, world_size, settings
        self.step = 0
        self.timer = PhaseTimer(profiler.from_env(worker=self.name, rank=rank, world_size=world_size))

    def identity(self) -> dict[str, Any]:
        return {
            "worker": self.name,
            "rank": self.rank,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "node_ip": ray.util.get_node_ip_address(),
            "python": sys.executable,
        }

    def begin_step(self, step: int) -> None:
        self.step = step
        self.timer.begin_step(step)

    def end_step(self) -> None:
        self.timer.end_step()

    def times(self) -> list[dict[str, Any]]:
        return self.timer.times

    def close(self) -> None:
        self.timer.close()

    @contextmanager
    def phase(self, name: str, more_ms: int = 0) -> Iterator[None]:
        """A phase of the step, as long as the settings ask for, and then `more_ms`."""
        begun = time.monotonic()
        with self.timer.phase(name):
            yield
            time.sleep(max(0.0, begun + self.settings.least_ms.get(name, 0) / 1000 - time.monotonic()))
            time.sleep(more_ms / 1000)


class GenerationWorker(DemoWorker):
    """Samples completions with the current weights and scores them."""

    name = "generation_worker"

    def __init__(self, rank: int, world_size: int, settings: DemoSettings) -> None:
        super().__init__(rank, world_size, settings)
        self.policy = new_policy(settings.seed)

    def generate(self, step: int, shard: int) -> Batch:
        """The completions of one policy worker's prompts in one step; the same whichever worker makes
        them.
        """
        longest = step % self.world_size == self.rank and shard < self.world_size
        with self.phase("generation", self.settings.tail_ms if longest else 0):
            generator = torch.Generator().manual_seed(hash((self.settings.seed, step, shard)) % 2**63)
            prompt = toy_task.prompts(self.settings.prompts, generator)
            prompt = prompt.repeat_interleave(self.settings.group_size, dim=0)
            completion, mask = sample(self.policy, prompt, generator)
            return {"prompt": prompt, "completion": completion, "mask": mask}

    def score(self, batch: Batch) -> Batch:
        with self.timer.phase("reward"):
            return {**batch, "rewards": toy_task.rewards(batch["prompt"], batch["completion"], batch["mask"])}

    def load_weights(self, shards: list[Any]) -> None:
        """Take the parameters that the policy workers put into the object store."""
        with self.phase("weight_sync"):
            weights: Weights = {}
            for shard in ray.get(shards):
                weights.update(shard)
            self.policy.load_state_dict(weights)


class PolicyWorker(DemoWorker):
    """One data-parallel replica of the policy, with a frozen copy of its first weights as the reference."""

    name = "policy_worker"

    def __init__(self, rank: int, world_size: int, settings: DemoSettings) -> None:
        super().__init__(rank, world_size, settings)
        self.policy = new_policy(settings.seed)
        self.reference = new_policy(settings.seed).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=settings.learning_rate)
        self.store: dist.TCPStore | None = None
        self.shuffle = torch.Generator().manual_seed(settings.seed * 1000 + rank)
        self.batch: Batch = {}

    def open_store(self) -> tuple[str, int]:
        """Rank 0: where the others meet. The system picks the port, so runs on one node never collide."""
        address = ray.util.get_node_ip_address()
        self.store = dist.TCPStore(
            address, 0, self.world_size, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
        )
        return address, self.store.port

    def join(self, address: str, port: int) -> None:
        """Make the process group of all policy workers."""
        bind_gloo_to(ray.util.get_node_ip_address())
        if self.store is None:
            self.store = dist.TCPStore(
                address, port, self.world_size, is_master=False, timeout=timedelta(seconds=60)
            )
        dist.init_process_group(
            "gloo",
            store=self.store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=self.settings.phase_timeout_s),
        )

    def reference_logprobs(self, batch: Batch) -> None:
        with self.phase("ref_logprob"), torch.no_grad():
            self._delay("ref_logprob")
            reference = logprobs(self.reference, batch["prompt"], batch["completion"])
            self.batch = {**batch, "reference": reference}

    def policy_logprobs(self) -> None:
        with self.phase("logprob"), torch.no_grad():
            self._delay("logprob")
            self.batch["old"] = logprobs(self.policy, self.batch["prompt"], self.batch["completion"])

    def advantages(self) -> None:
        with self.timer.phase("advantage"):
            self._delay("advantage")
            self.batch["advantages"] = grpo.group_advantages(self.batch["rewards"], self.settings.group_size)

    def train(self) -> dict[str, float]:
        """A few epochs of minibatches; the gradients of all replicas are averaged before each update."""
        with self.phase("train"):
            self._delay("train")
            losses = [self._update(rows) for rows in self._minibatches()]
            kl = grpo.masked_mean(
                grpo.kl_estimate(self.batch["old"], self.batch["reference"]), self.batch["mask"]
            )
            return {
                "reward": self.batch["rewards"].mean().item(),
                "loss": sum(losses) / len(losses),
                "kl": kl.item(),
                "length": self.batch["mask"].sum(dim=1).mean().item(),
            }

    def publish_weights(self) -> Any:
        """Put this replica's share of the parameters into the object store; the shares of all ranks make
        the whole.
        """
        with self.timer.phase("weight_sync"):
            parameters = list(self.policy.state_dict().items())[self.rank :: self.world_size]
            return ray.put({name: value.detach().clone() for name, value in parameters})

    def close(self) -> None:
        super().close()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _minibatches(self) -> list[torch.Tensor]:
        rows = self.batch["rewards"].numel()
        return [
            part
            for _ in range(self.settings.epochs)
            for part in torch.randperm(rows, generator=self.shuffle).chunk(self.settings.minibatches)
        ]

    def _update(self, rows: torch.Tensor) -> float:
        part = {key: value[rows] for key, value in self.batch.items()}
        loss = grpo.loss(
            logprobs(self.policy, part["prompt"], part["completion"]),
            part["old"],
            part["reference"],
            part["advantages"],
            part["mask"],
        )
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        # A range of its own: what a rank waits for the others in here is not its own slowness.
        with self.timer.profiler.range("all_reduce"):
            average_gradients(self.policy, self.world_size)
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def _delay(self, phase: str) -> None:
        if phase != self.settings.slow_phase:
            return
        if self.rank == 0 and self.step == self.settings.hang_at_step:
            threading.Event().wait()
        if self.rank == self.settings.slow_rank and self.step >= self.settings.slow_from:
            time.sleep(self.settings.slow_ms / 1000)


def average_gradients(policy: Policy, world_size: int) -> None:
    """Replace every gradient by its mean over the replicas, in one all-reduce."""
    gradients = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world_size
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
