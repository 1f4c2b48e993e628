"""Names of any length as names of a length that tables can hold, no two of them alike."""

from __future__ import annotations

from hashlib import sha1

LONGEST = 2000  # kept whole by the readers: templates of CUTLASS have several hundred letters


def shortened(name: str, limit: int = LONGEST) -> str:
    """`name`, or its beginning and end with eight digits that tell it from others cut alike."""
    if len(name) <= limit:
        return name
    digits = sha1(name.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:8]
    tail = min(60, limit // 4)
    return f"{name[: limit - tail - 11]}…{name[len(name) - tail :]} #{digits}"
