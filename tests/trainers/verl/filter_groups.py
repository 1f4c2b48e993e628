"""The loop of verl's recipe/dapo/dapo_ray_trainer.py around verl's own timer: with `filter_groups` it leaves
`step` by `continue` until it has enough prompts. It prints what the timer measured of each step.
"""

import time

from verl.utils.profiler.performance import simple_timer

ATTEMPTS, STEPS = 3, 4


class RayDAPOTrainer:
    def fit(self) -> None:
        self.global_steps = 1
        timing: dict[str, float] = {}
        num_prompt_in_batch, prompt_bsz = 0, ATTEMPTS
        while self.global_steps <= STEPS:
            with simple_timer("step", timing):
                with simple_timer("gen", timing):
                    time.sleep(0.03)
                num_prompt_in_batch += 1
                if num_prompt_in_batch < prompt_bsz:
                    continue
                with simple_timer("update_actor", timing):
                    time.sleep(0.05)
            for name, seconds in timing.items():
                print(f"timed {name} {self.global_steps} {seconds:.6f}", flush=True)
            timing, num_prompt_in_batch = {}, 0
            self.global_steps += 1


if __name__ == "__main__":
    RayDAPOTrainer().fit()
