"""The table in docs/unmodified.md of what is seen of each trainer: from what its adapter uses, and the$
test that holds each cell (tests/trainers/seen.json).
"""

from __future__ import annotations

import ast
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from rlprof_ops import trainers

HELD = Path(__file__).parents[1] / "tests" / "trainers" / "seen.json"
FEATURES = {
    "steps": {"LeadingLoop"},
    "phases": {"phase"},
    "roles": {"add_rule"},
    "ranks": {"add_rule", "world_size", "num_processes"},
    "tasks": {"task", "begin_task", "decorated_tasks"},
    "windows": {"LeadingLoop", "add_rule"},
    "requests": {"request_log"},
    "age of samples": {"sample_versions"},
}
"""Column -> what an adapter uses that sees it, any of these names."""


def features(trainer: str) -> set[str]:
    """What the adapter of a trainer here sees."""
    home = Path(import_module(trainers.builtin()[trainer]).__path__[0])
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in home.glob("*.py"))
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return {feature for feature, names in FEATURES.items() if names & used}


def held() -> dict[str, dict[str, Any]]:
    """Trainer -> its name, its page, and the test of each cell."""
    found: dict[str, dict[str, Any]] = json.loads(HELD.read_text(encoding="utf-8"))
    return found


def seen_table() -> str:
    """Trainer x feature: `yes` where a test holds it, `not run` where the adapter alone has it."""
    lines = ["", f"| | {' | '.join(FEATURES)} |", "|---" * (len(FEATURES) + 1) + "|"]
    for trainer, row in held().items():
        there = features(trainer)
        cells = ["yes" if each in row["held"] else "not run" if each in there else "–" for each in FEATURES]
        parts = " (parts)" if row.get("parts") else ""
        lines.append(f"| [{row['name']}]({row['page']}){parts} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""]) + "\n"
