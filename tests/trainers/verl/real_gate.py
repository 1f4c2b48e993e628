"""What the installed verl makes of overrides; run by verl's interpreter.

    python real_gate.py < question.json

The question is a list of lists of Hydra overrides. Each is composed with verl's own `ppo_trainer`, and for
every role verl's own `DistProfiler` is made as its workers make it, for WORLD ranks. The answer, the last
line, has for each the profiled steps and by role the profiled ranks, the mode and the tool; or a text, the
exception.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import Any

import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.profiler import DistProfiler, ProfilerConfig
from verl.utils.profiler.profile import build_rollout_dist_profiler

WORLD = 4
ROLES = {
    "actor": "actor_rollout_ref.actor",
    "rollout": "actor_rollout_ref.rollout",
    "ref": "actor_rollout_ref.ref",
    "critic": "critic",
}
TOOLS = ("nsys", "torch", "torch_memory")


def profilers(config: Any, role: str) -> list[DistProfiler]:
    """One for each rank, as `ActorRolloutRefWorker` makes it; rollout's replicas have one GPU, and its
    servers take the torch tool alone.
    """
    given = OmegaConf.select(config, f"{ROLES[role]}.profiler")
    if role == "rollout" and given.tool != "torch":
        return [build_rollout_dist_profiler(rank, 1, None) for rank in range(WORLD)]
    made = omega_conf_to_dataclass(given, dataclass_type=ProfilerConfig)
    tool = given.get("tool")
    tool_config = omega_conf_to_dataclass(given.tool_config.get(tool)) if tool in TOOLS else None
    if role == "rollout":
        return [build_rollout_dist_profiler(rank, 1, made, tool_config) for rank in range(WORLD)]
    return [DistProfiler(rank, config=made, tool_config=tool_config) for rank in range(WORLD)]


def answer(words: list[str]) -> dict[str, Any]:
    config = compose("ppo_trainer", words)
    OmegaConf.resolve(config)  # as main_ppo does
    steps = config.global_profiler.steps
    roles = {}
    for role in ROLES:
        made = profilers(config, role)
        on = [profiler.rank for profiler in made if profiler.check_enable() and profiler.check_this_rank()]
        roles[role] = {
            "ranks": on, "discrete": bool(made[0].is_discrete_mode()), "tool": type(made[0]._impl).__name__,
        }  # fmt: skip
    nsys = config.global_profiler.global_tool_config.nsys
    return {
        "steps": [step for step in range(1, 13) if (step in steps if steps is not None else False)],
        "roles": roles,
        "joined": config.global_profiler.profile_continuous_steps,
        "worker": OmegaConf.to_container(nsys.worker_nsight_options, resolve=True),
    }


def main() -> None:
    logging.disable(logging.CRITICAL)
    rows: list[Any] = []
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        for words in json.load(sys.stdin):
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    rows.append(answer(words))
            except Exception as error:
                rows.append(f"{type(error).__name__}: {error}"[:300])
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
