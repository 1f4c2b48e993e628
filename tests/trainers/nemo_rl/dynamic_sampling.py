"""The loop of nemo_rl/algorithms/grpo.py around NeMo RL's own timer: with dynamic sampling it leaves
`total_step_time` by `continue` until its batch is complete. It prints what the timer measured of each step.
"""

import time

from nemo_rl.utils.nsys import maybe_gpu_profile_step
from nemo_rl.utils.timer import Timer

ATTEMPTS, STEPS = 3, 4


def main() -> None:
    timer, policy, total_steps, attempts = Timer(), object(), 0, 0
    while total_steps < STEPS:
        attempts += 1
        maybe_gpu_profile_step(policy, total_steps + 1)
        with timer.time("total_step_time"):
            with timer.time("generation"):
                time.sleep(0.03)
            is_batch_complete = attempts == ATTEMPTS
            if not is_batch_complete:
                continue
            with timer.time("policy_training"):
                time.sleep(0.05)
        for name, seconds in timer.get_timing_metrics(reduction_op="sum").items():
            print(f"timed {name} {total_steps + 1} {seconds:.6f}", flush=True)
        timer.reset()
        total_steps, attempts = total_steps + 1, 0


if __name__ == "__main__":
    main()
