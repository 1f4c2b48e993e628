"""What the demo profiles: two nsight windows where nsys is installed, and one torch window of every
worker.
"""

from __future__ import annotations

from pathlib import Path

_NSIGHT = """\
  - backend: nsight
    workers: [policy_worker, generation_worker]
    steps: "3:5, 7"
    options: {t: nvtx}
"""
_TORCH = """\
  - backend: torch
    workers: [policy_worker, generation_worker]
    steps: "5:7"
"""


def write_request(path: Path, with_nsight: bool) -> Path:
    """Write the demo's request as YAML, so that a newcomer sees what one looks like; gives `path` back."""
    path.write_text("captures:\n" + (_NSIGHT if with_nsight else "") + _TORCH, encoding="utf-8")
    return path
