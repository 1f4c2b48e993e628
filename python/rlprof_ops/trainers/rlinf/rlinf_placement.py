"""How many processes RLinf's worker groups have: `cluster.component_placement` as its scheduler reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlprof_ops.trainers.hydra import dig
from rlprof_ops.trainers.trainer_file import UnknownWorld, dig_resolved, whole_number

# Where a component's group name is written when it is not under the component's own name.
SECTIONS = {"agent": "agentloop", "actor_inference": "inference"}
# Tasks whose engines span `rollout.tensor_parallel_size` accelerators (ModelParallelComponentPlacement).
ENGINE_TASKS = ("reasoning", "reasoning_eval", "coding_online_rl", "searchr1", "wideseek_r1", "rstar2")


def group_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The groups that a configuration names (`<component>.group_name`), in its order."""
    found = [
        name
        for section, value in config.items()
        if isinstance(value, Mapping) and isinstance(name := dig_resolved(config, section, "group_name"), str)
    ]
    return tuple(dict.fromkeys(name for name in found if name and "${" not in name))


def world(config: Mapping[str, Any], gpus_per_node: int | None = None) -> dict[str, int]:
    """Processes per worker group.

    Args:
        gpus_per_node: accelerators of a node, for `all`; a configuration does not say it.

    Raises:
        UnknownWorld: there is no placement, one cannot be read, or `all` is asked of an unknown number.
    """
    placement = dig(config, "cluster", "component_placement")
    if not isinstance(placement, Mapping) or not placement:
        raise UnknownWorld("there is no cluster.component_placement")
    nodes = whole_number(config, "cluster", "num_nodes")
    per_node = gpus_per_node or whole_number(config, "cluster", "num_gpus_per_node")
    total = nodes * per_node if nodes and per_node else None
    found: dict[str, int] = {}
    once: set[str] = set()
    for components in placement:
        for component in _parts(components):
            if component in once:
                raise UnknownWorld(f"{component} is placed twice, which RLinf refuses")
            once.add(component)
    for components, where in placement.items():
        text, own_nodes = (
            (where.get("placement"), "node_group" in where) if isinstance(where, Mapping) else (where, False)
        )
        count = processes(str(text), None if own_nodes else total, str(components))
        found |= dict.fromkeys(_parts(components), count)
    _auto(config, found)
    found = {component: _engines(config, component, count) for component, count in found.items()}
    # A component that the configuration gives no group is not launched (`cfg.<component>.group_name`).
    named = {component: group for component in found if (group := group_of(config, component))}
    return {
        named.get(component, component): n for component, n in found.items() if component in (named or found)
    }


def _parts(components: object) -> list[str]:
    """The components of one entry, `actor,rollout`."""
    return [part for part in (piece.strip() for piece in str(components).split(",")) if part]


def group_of(config: Mapping[str, Any], component: str) -> str:
    """The group's name of a component as the configuration says it; "" when it does not."""
    for section in (component, SECTIONS.get(component, component)):
        name = dig_resolved(config, section, "group_name")
        if isinstance(name, str) and name and "${" not in name:
            return name
    return ""


def _auto(config: Mapping[str, Any], found: dict[str, int]) -> None:
    """`cluster.auto_scheduler`: the actor spans every accelerator, which actor, rollout and inference fill
    one after the other, and with `use_pre_process_policy` the rollout begins on the actor's.
    """
    auto = dig_resolved(config, "cluster", "auto_scheduler") is True
    if not auto or dig(config, "runner", "task_type") not in ENGINE_TASKS or "critic" in found:
        return
    trained = found.get("actor", 0)
    found["actor"] = sum(found.get(component, 0) for component in ("actor", "rollout", "inference"))
    if dig_resolved(config, "cluster", "use_pre_process_policy") is True:
        found["rollout"] = found.get("rollout", 0) + trained


def _engines(config: Mapping[str, Any], component: str, count: int) -> int:
    if component != "rollout" or dig(config, "runner", "task_type") not in ENGINE_TASKS:
        return count
    size = (whole_number(config, "rollout", "tensor_parallel_size") or 1) * (
        whole_number(config, "rollout", "pipeline_parallel_size") or 1
    )
    return max(1, count // size)


def processes(text: str, total: int | None, what: str = "placement") -> int:
    """How many processes `0-3:0-7,4` means: `resources[:processes]`, each part a rank, a range or `all`.

    Raises:
        UnknownWorld: for what RLinf refuses too, and for `all` where `total` is None.
    """
    count = 0
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        resources, colon, ranks = part.partition(":")
        if resources.strip().lower() == "all":
            if not colon and total is None:
                raise UnknownWorld(
                    f"{what} is placed on all accelerators, and how many a node has is not in the file;"
                    " give --gpus-per-node"
                )
            size = total or 0
        else:
            size = _range(resources, what)
        count += _range(ranks, what) if colon else size
    if not count:
        raise UnknownWorld(f"the placement {text!r} of {what} names no rank")
    return count


def _range(text: str, what: str) -> int:
    first, dash, last = (part.strip() for part in text.partition("-"))
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal()) or int(last) < int(first):
        raise UnknownWorld(f"{what}: {text.strip()!r} is no rank and no range of ranks such as 0-7")
    return int(last) - int(first) + 1
