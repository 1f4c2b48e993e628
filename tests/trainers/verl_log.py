"""What verl logs of its steps on the console: the oracle of times, tokens and versions."""

from __future__ import annotations

import re

_VALUE = re.compile(r"([\w/().-]+):(?:np\.\w+\()?(-?[\d.]+(?:e[-+]\d+)?)\)?")


def logged(text: str) -> dict[int, dict[str, float]]:
    """Metrics of each step by verl's name; of lines of one step the later one's."""
    found: dict[int, dict[str, float]] = {}
    for line in text.splitlines():
        if match := re.search(r"step:(\d+) - (.*)", line):
            pairs = _VALUE.findall(match[2])
            found.setdefault(int(match[1]), {}).update({name: float(value) for name, value in pairs})
    return found
