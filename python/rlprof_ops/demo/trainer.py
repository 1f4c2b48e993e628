"""The controller: places the actors, drives the phases of each step, and keeps the record of the run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlprof_ops.demo.settings import DemoSettings
from rlprof_ops.demo.stopwatch import PhaseTimer
from rlprof_ops.demo.workers import GenerationWorker, PolicyWorker
from rlprof_ops.errors import RlprofError
from rlprof_ops.runtime import profiler
from rlprof_ops.words import limit

CPUS_PER_WORKER = 0.25  # small, so that the demo fits beside others on two cores


class Trainer:
    """One GRPO run on the connected Ray cluster. `close` ends it in order; a crash does not call it."""

    def __init__(self, settings: DemoSettings) -> None:
        self.settings = settings
        self.timer = PhaseTimer(profiler.from_env(worker="controller", rank=0, world_size=1))
        self.history: list[dict[str, Any]] = []
        self._published: list[Any] = []
        self._place()

    def run(self) -> None:
        for step in range(1, self.settings.steps + 1):
            self.step(step)

    def step(self, step: int) -> dict[str, Any]:
        """One training step on all workers; returns its mean reward, loss, KL and seconds."""
        begun = time.monotonic()
        with self._step_on_all(step):
            with self.timer.phase("generation"):
                batches = self._generate(step)
            if step == self.settings.fail_at_step:
                print(
                    f"demo: failing in step {step} as asked, exit code {self.settings.exit_code}",
                    file=sys.stderr,
                )
                sys.stderr.flush()
                raise SystemExit(self.settings.exit_code)
            with self.timer.phase("reward"):
                makers = [self._maker(shard) for shard in range(len(batches))]
                batches = [m.score.remote(b) for m, b in zip(makers, batches, strict=True)]
                self._wait(batches, fetch=False)
            # with `overlap_sync`, those of the step before: generation has nothing else to do now
            loading = [g.load_weights.remote(self._published) for g in self.generators if self._published]
            with self.timer.phase("ref_logprob"):
                calls = [p.reference_logprobs.remote(b) for p, b in zip(self.policies, batches, strict=True)]
                self._wait(calls)
            with self.timer.phase("logprob"):
                self._wait([p.policy_logprobs.remote() for p in self.policies])
            with self.timer.phase("advantage"):
                self._wait([p.advantages.remote() for p in self.policies])
            with self.timer.phase("train"):
                results = self._wait([p.train.remote() for p in self.policies])
            with self.timer.phase("weight_sync"):
                shards = self._wait([p.publish_weights.remote() for p in self.policies])
                if self.settings.overlap_sync:
                    self._published = shards
                else:
                    loading = [g.load_weights.remote(shards) for g in self.generators]
                self._wait(loading)
            time.sleep(max(0.0, begun + self.settings.step_seconds - time.monotonic()))
        record = {"step": step, "seconds": time.monotonic() - begun}
        record.update({key: sum(result[key] for result in results) / len(results) for key in results[0]})
        self.history.append(record)
        return record

    def record(self) -> dict[str, Any]:
        """The run as data: per step the means, per worker every phase's start and end in UTC nanoseconds."""
        identities = self._wait([worker.identity.remote() for worker in self.workers])
        times = self._wait([worker.times.remote() for worker in self.workers])
        workers = [{**identity, "times": t} for identity, t in zip(identities, times, strict=True)]
        controller = {"worker": "controller", "rank": 0, "pid": os.getpid(), "times": self.timer.times}
        return {"schema": 1, "steps": self.history, "workers": [*workers, controller]}

    def close(self) -> None:
        """Close every profiler, then let the actors go: after this all reports are complete."""
        self._wait([worker.close.remote() for worker in self.workers])
        self.timer.close()
        ray.wait(
            [worker.__ray_terminate__.remote() for worker in self.workers],
            num_returns=len(self.workers),
            timeout=60,
        )
        remove_placement_group(self._group)

    def _place(self) -> None:
        """Start the actors, spread over the nodes, and connect the policy workers."""
        s = self.settings
        total = s.policy_workers + s.generation_workers
        self._group = placement_group([{"CPU": CPUS_PER_WORKER}] * total, strategy="SPREAD")
        if not self._group.wait(s.start_timeout_s):
            raise RlprofError(
                f"Ray found no place for {total} workers of {CPUS_PER_WORKER} CPU in"
                f" {limit(s.start_timeout_s)}; free: {ray.available_resources().get('CPU', 0):g} CPU. Ask for"
                " fewer workers, or free the cluster."
            )
        self.policies = [self._start(PolicyWorker, r, s.policy_workers, r) for r in range(s.policy_workers)]
        self.generators = [
            self._start(GenerationWorker, r, s.generation_workers, s.policy_workers + r)
            for r in range(s.generation_workers)
        ]
        self.workers = [*self.policies, *self.generators]
        self._wait_started()
        address, port = self._wait([self.policies[0].open_store.remote()])[0]
        self._wait([policy.join.remote(address, port) for policy in self.policies])

    def _start(self, cls: type, rank: int, world_size: int, bundle: int) -> Any:
        return (
            ray.remote(cls)
            .options(
                num_cpus=CPUS_PER_WORKER,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, bundle),
                runtime_env=profiler.runtime_env(cls.name, rank),  # type: ignore[attr-defined]
            )
            .remote(rank, world_size, self.settings)
        )

    def _wait_started(self) -> None:
        refs = [worker.identity.remote() for worker in self.workers]
        started, waiting = ray.wait(refs, num_returns=len(refs), timeout=self.settings.start_timeout_s)
        ray.get(started)
        if waiting:
            missing = [name for ref, name in zip(refs, self._names(), strict=True) if ref in waiting]
            raise RlprofError(
                f"{', '.join(missing)} did not start in {limit(self.settings.start_timeout_s)}; "
                "see the raylet and runtime_env logs in Ray's session folder."
            )

    def _names(self) -> list[str]:
        policies = [f"policy_worker rank {r}" for r in range(len(self.policies))]
        return policies + [f"generation_worker rank {r}" for r in range(len(self.generators))]

    def _generate(self, step: int) -> list[Any]:
        shards = range(self.settings.policy_workers)
        return self._wait([self._maker(s).generate.remote(step, s) for s in shards], fetch=False)

    def _maker(self, shard: int) -> Any:
        return self.generators[shard % len(self.generators)]

    @contextmanager
    def _step_on_all(self, step: int) -> Iterator[None]:
        # All have begun before any works: opening a window takes time that belongs to no phase.
        self._wait([worker.begin_step.remote(step) for worker in self.workers])
        self.timer.begin_step(step)
        yield
        self.timer.end_step()
        self._wait([worker.end_step.remote() for worker in self.workers])

    def _wait(self, refs: list[Any], fetch: bool = True) -> list[Any]:
        """Results of remote calls, or the refs themselves. Raises ray's GetTimeoutError after
        `phase_timeout_s`.
        """
        if fetch:
            return list(ray.get(refs, timeout=self.settings.phase_timeout_s))
        _, late = ray.wait(
            refs, num_returns=len(refs), timeout=self.settings.phase_timeout_s, fetch_local=False
        )
        if late:
            raise ray.exceptions.GetTimeoutError(
                f"{len(late)} calls took over {self.settings.phase_timeout_s} s"
            )
        return refs


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write through a temporary name, so that a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(path)
