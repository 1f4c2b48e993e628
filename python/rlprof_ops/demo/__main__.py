"""`python -m rlprof_ops.demo`: the command line of the demo."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from rlprof_ops.demo.settings import PADDED, DemoSettings
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.words import duration


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    defaults = DemoSettings()
    parser = argparse.ArgumentParser(
        prog="python -m rlprof_ops.demo",
        description="A small real GRPO on Ray, CPU only.",
        epilog="Example: RLPROF_STEPS=3:5 RLPROF_BACKEND=torch python -m rlprof_ops.demo --steps 8",
    )
    add = parser.add_argument
    add("--steps", type=int, default=defaults.steps, help="training steps (%(default)s)")
    add("--policy-workers", type=int, default=defaults.policy_workers, metavar="N", help="(%(default)s)")
    add(
        "--generation-workers",
        type=int,
        default=defaults.generation_workers,
        metavar="N",
        help="(%(default)s)",
    )
    add(
        "--prompts",
        type=int,
        default=defaults.prompts,
        metavar="N",
        help="of each policy worker in a step (%(default)s)",
    )
    add(
        "--epochs",
        type=int,
        default=defaults.epochs,
        metavar="N",
        help="of training on each batch (%(default)s)",
    )
    add("--seed", type=int, default=defaults.seed, help="(%(default)s)")
    add(
        "--json", type=Path, metavar="FILE", help="write rewards and the times of every phase of every worker"
    )
    add("--address", help="auto, local or a Ray address (a running cluster if there is one, else local)")
    add("--step-seconds", type=float, default=0.0, metavar="S", help="make every step at least this long")
    add(
        "--least-ms",
        action="append",
        default=[],
        metavar="PHASE=MS",
        help="make a phase at least this long wherever it runs; again for another phase",
    )
    add(
        "--overlap-sync",
        action="store_true",
        help="load weights while the next step trains: generation is then one step behind",
    )
    faults = parser.add_argument_group("faults, for tests of what profiles them")
    faults.add_argument("--slow-rank", type=int, metavar="R", help="this policy worker is slower")
    faults.add_argument(
        "--slow-ms", type=int, default=200, metavar="MS", help="by this much a step (%(default)s)"
    )
    faults.add_argument(
        "--slow-phase",
        choices=("ref_logprob", "logprob", "advantage", "train"),
        default="train",
        help="(%(default)s)",
    )
    faults.add_argument(
        "--tail-ms",
        type=int,
        default=0,
        metavar="MS",
        help="one generation worker takes this much longer, another one in each step",
    )
    faults.add_argument(
        "--slow-from",
        type=int,
        default=defaults.slow_from,
        metavar="N",
        help="the first step in which it is slow (%(default)s)",
    )
    faults.add_argument(
        "--hang-at-step", type=int, metavar="N", help="policy worker 0 stands still in step N"
    )
    faults.add_argument("--fail-at-step", type=int, metavar="N", help="end in step N as a crash does")
    faults.add_argument("--exit-code", type=int, default=defaults.exit_code, help="of that end (%(default)s)")
    return parser.parse_args(argv)


def settings_from(args: argparse.Namespace) -> DemoSettings:
    """Check what argparse cannot. Raises UsageError."""
    for option in ("steps", "policy_workers", "generation_workers", "prompts", "epochs"):
        if getattr(args, option) < 1:
            raise UsageError(f"--{option.replace('_', '-')} {getattr(args, option)}: must be 1 or more")
    if args.slow_rank is not None and not 0 <= args.slow_rank < args.policy_workers:
        raise UsageError(
            f"--slow-rank {args.slow_rank}: policy workers have ranks 0 to {args.policy_workers - 1}"
        )
    if args.hang_at_step is not None and not 1 <= args.hang_at_step <= args.steps:
        raise UsageError(f"--hang-at-step {args.hang_at_step}: this run has steps 1 to {args.steps}")
    if args.slow_from < 1:
        raise UsageError(f"--slow-from {args.slow_from}: must be 1 or more")
    if args.fail_at_step is not None and not 1 <= args.fail_at_step <= args.steps:
        raise UsageError(f"--fail-at-step {args.fail_at_step}: this run has steps 1 to {args.steps}")
    return DemoSettings(
        tail_ms=args.tail_ms,
        least_ms=dict(_least(told) for told in args.least_ms),
        overlap_sync=args.overlap_sync,
        steps=args.steps,
        policy_workers=args.policy_workers,
        generation_workers=args.generation_workers,
        seed=args.seed,
        prompts=args.prompts,
        epochs=args.epochs,
        slow_rank=args.slow_rank,
        slow_ms=args.slow_ms,
        slow_phase=args.slow_phase,
        slow_from=args.slow_from,
        hang_at_step=args.hang_at_step,
        fail_at_step=args.fail_at_step,
        exit_code=args.exit_code,
        step_seconds=args.step_seconds,
    )


def _least(told: str) -> tuple[str, int]:
    phase, _, length = told.partition("=")
    if phase not in PADDED or not length.isdigit():
        raise UsageError(
            f"--least-ms {told}: must be PHASE=MS with a phase of {', '.join(sorted(PADDED))} and whole"
            " milliseconds"
        )
    return phase, int(length)


def connect(address: str | None) -> None:
    """Join the cluster at `address`, or start Ray here. None means: a running cluster if there is one.

    Raises:
        RlprofError: no cluster answers at the address that was asked for.
    """
    import ray

    quiet: dict[str, Any] = {"logging_level": "warning", "log_to_driver": True}
    if address == "local":
        ray.init(address="local", include_dashboard=False, **quiet)
        return
    try:
        ray.init(address=address or "auto", **quiet)
    except ConnectionError as error:
        if address or os.environ.get("RAY_ADDRESS"):
            wanted = address or os.environ["RAY_ADDRESS"]
            raise RlprofError(
                f"no Ray cluster at {wanted!r}: {error}. Start one with `ray start --head`, or give --address"
                " local."
            ) from error
        ray.init(address="local", include_dashboard=False, **quiet)


def train(settings: DemoSettings, address: str | None, json_path: Path | None) -> None:
    import ray

    connect(address)
    from rlprof_ops.demo.trainer import Trainer, write_json

    trainer = Trainer(settings)
    for step in range(1, settings.steps + 1):
        record = trainer.step(step)
        print(
            f"step {step:3d}  reward {record['reward']:.3f}  loss {record['loss']:+.4f}  kl"
            f" {record['kl']:.4f}  length {record['length']:4.1f}  {duration(record['seconds'] * 1e9)}",
            flush=True,
        )
    record = trainer.record()
    trainer.close()
    ray.shutdown()
    if json_path:
        write_json(json_path, record)
    print(f"mean reward at the start {trainer.history[0]['reward']:.3f}")
    print(f"mean reward at the end   {trainer.history[-1]['reward']:.3f}", flush=True)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        train(settings_from(args), args.address, args.json)
    except RlprofError as error:
        print(f"rlprof demo: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
