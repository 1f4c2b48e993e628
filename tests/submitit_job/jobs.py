"""What the tests of RayJob share."""

from __future__ import annotations

import sys
from pathlib import Path

TRAINER = [sys.executable, "-u", str(Path(__file__).with_name("trainer.py"))]
ASKED = {
    "captures": [
        {
            "backend": "memory",
            "workers": ["policy_worker"],
            "ranks": [0],
            "steps": "2,4:6",
            "options": {"host": "true"},
        }
    ]
}
CAPTURES = {"memory/policy_worker/rank0/step2-2", "memory/policy_worker/rank0/step4-5"}
QUICK = {"RAY_LOG_SYNC_FREQUENCY": "1"}


def say(folder: Path) -> str:
    """Everything a person would look at after a failure."""
    files = [*sorted(folder.glob("*_log.*")), *sorted(folder.glob("*-logs/logs/*.log"))]
    return "\n".join(f"--- {file}\n{file.read_text(errors='replace')[-3000:]}" for file in files)
