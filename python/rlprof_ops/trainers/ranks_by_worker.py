"""How many ranks each worker has: from `--world`, or from a trainer's own configuration."""

from __future__ import annotations

from rlprof_ops.request.problems import Problem, RequestError, shown
from rlprof_ops.trainers.dialects import Framework
from rlprof_ops.trainers.trainer_file import UnknownWorld, read_inherited

EXAMPLE = "policy_worker=8,generation_worker=4"


def parse_world(text: str) -> dict[str, int]:
    """`policy_worker=8,generation_worker=4` as a mapping. Raises RequestError with every wrong item."""
    found: dict[str, int] = {}
    problems = []
    for item in (part.strip() for part in text.split(",")):
        if not item:
            continue
        name, _, count = (part.strip() for part in item.partition("="))
        if not name or not count.isascii() or not count.isdigit() or len(count) > 7:
            problems.append(Problem(f"{shown(item)} is not NAME=RANKS; write e.g. {EXAMPLE}", "--world"))
        elif name in found:
            problems.append(Problem(f"{name!r} stands twice", "--world"))
        else:
            found[name] = int(count)
    if not found and not problems:
        problems.append(Problem(f"names no worker; write e.g. {EXAMPLE}", "--world"))
    if problems:
        raise RequestError(problems)
    return found


def world_of_trainer(framework: Framework, path: str, gpus_per_node: int | None = None) -> dict[str, int]:
    """The world of a trainer's YAML file, with the files it inherits from.

    Raises:
        RequestError: the file does not tell it, with the reason.
    """
    try:
        found = framework.world(read_inherited(path), gpus_per_node)
    except UnknownWorld as error:
        reason = f": {error}"
        found = {}
    else:
        reason = ""
    if not found:
        raise RequestError(
            [
                Problem(
                    f"does not tell how many ranks {framework.title}'s workers have{reason}; give --world"
                    f" {EXAMPLE}",
                    path,
                )
            ]
        )
    return found
