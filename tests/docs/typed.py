"""The command lines of the documents, as somebody types them."""

from __future__ import annotations

import re
from pathlib import Path

HOME = Path(__file__).parents[2]
DOCUMENTS = [HOME / "README.md", *sorted((HOME / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELLS = ("bash", "console", "sh")
_STARTS = re.compile(
    r"^(?:[A-Z][A-Z_0-9]+=\S|(?:rlprof|sbatch|srun|scancel|torchrun|python3?|make|export|ssh|scp|eval) )"
)


def lines(text: str) -> list[str]:
    """Every command of a document: of its shell blocks (in a session, what follows `$ `), of indented blocks
    that hold commands, and the example that a command's help gives. Continued lines are one.
    """
    found = []
    for language, block in _FENCE.findall(text):
        if language in _SHELLS:
            session = re.findall(r"^\$ (.*(?:\\\n.*)*)", block, re.MULTILINE)
            found += session if session else _joined(block)
        else:
            found += re.findall(r"^Example: (rlprof .*)", block, re.MULTILINE)
    for block in re.findall(r"(?:^    .*\n)+", _FENCE.sub("", text), re.MULTILINE):
        found += [line for line in _joined(block) if _STARTS.match(line)]
    return [line.replace("\\\n", " ").strip() for line in found]


def _joined(block: str) -> list[str]:
    whole = [line.strip().removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in whole if line and not line.startswith("#")]
