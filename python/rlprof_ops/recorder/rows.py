"""The rows of a node's record, as bytes of fixed width: what is written each second, and what is read again.

Times of samples are tenths of a second since the record's base; a step has its full begin. Names are numbers
that NAME rows explain, so that a row stays small.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

GPU, HOST, ENGINE, STEP, PHASE, NAME = range(1, 7)
TENTH_NS = 100_000_000

# (format, names of the fields); all little endian, nothing padded.
LAYOUT: dict[int, tuple[struct.Struct, tuple[str, ...]]] = {
    GPU: (
        struct.Struct("<IBBBBHHIHHI"),
        (
            "t",
            "gpu",
            "busy_percent",
            "temperature_c",
            "spare",
            "power_w",
            "sm_mhz",
            "memory_mib",
            "throttle",
            "pcie_mib_s",
            "nvlink_mib_s",
        ),
    ),
    HOST: (
        struct.Struct("<IHIIIIII"),
        (
            "t",
            "cpu_permille",
            "memory_mib",
            "received_kib_s",
            "sent_kib_s",
            "read_kib_s",
            "written_kib_s",
            "store_mib",
        ),
    ),
    ENGINE: (
        struct.Struct("<IHHHHIff"),
        ("t", "engine", "running", "waiting", "cache_permille", "preemptions", "tokens_s", "prompt_tokens_s"),
    ),
    STEP: (struct.Struct("<HIqf"), ("process", "step", "begin_ns", "seconds")),
    PHASE: (
        struct.Struct("<HIHHfff"),
        ("process", "step", "name", "count", "begin_s", "seconds", "own_seconds"),
    ),
}
_NAME_HEAD = struct.Struct("<HH")
_MOST_NAME = 512
_FLOAT, _BITS = struct.Struct("<f"), struct.Struct("<I")


def pack(kind: int, *values: float) -> bytes:
    """One row without its kind; numbers that do not fit are cut to what does."""
    layout = LAYOUT[kind][0]
    limits = _LIMITS[kind]
    fitted = [
        _rounded(value) if limit is None else min(max(int(value), limit[0]), limit[1])
        for value, limit in zip(values, limits, strict=True)
    ]
    return layout.pack(*fitted)


def _rounded(value: float) -> float:
    """To one part in two thousand: the bits below are noise, and noise does not pack."""
    (bits,) = _BITS.unpack(_FLOAT.pack(value))
    return float(_FLOAT.unpack(_BITS.pack((bits + 0x800) & 0xFFFFF000))[0])


def _limits(layout: str) -> tuple[tuple[int, int] | None, ...]:
    sizes = {"B": (0, 0xFF), "H": (0, 0xFFFF), "I": (0, 0xFFFFFFFF), "q": (-(2**63), 2**63 - 1), "f": None}
    return tuple(sizes[letter] for letter in layout[1:])


_LIMITS = {kind: _limits(layout.format) for kind, (layout, _) in LAYOUT.items()}


@dataclass
class Names:
    """Numbers for texts; `fresh` are the rows that a reader needs for those numbered since."""

    numbers: dict[str, int]
    fresh: list[bytes]

    @classmethod
    def new(cls) -> Names:
        return cls({}, [])

    def number(self, text: str) -> int:
        text = text[:_MOST_NAME]
        known = self.numbers.get(text)
        if known is None:
            known = min(len(self.numbers) + 1, 0xFFFF)
            self.numbers[text] = known
            self.fresh.append(name_row(known, text))
        return known


def name_row(number: int, text: str) -> bytes:
    data = text.encode("utf-8", "replace")[:_MOST_NAME]
    return _NAME_HEAD.pack(number, len(data)) + data


def read_names(data: bytes) -> dict[int, str]:
    """What NAME rows say; one that is cut off is left out."""
    found: dict[int, str] = {}
    place = 0
    while place + _NAME_HEAD.size <= len(data):
        number, size = _NAME_HEAD.unpack_from(data, place)
        place += _NAME_HEAD.size
        if place + size > len(data):
            break
        found[number] = data[place : place + size].decode("utf-8", "replace")
        place += size
    return found


def process_name(worker: str, rank: int, pid: int, leads: bool) -> str:
    return f"{worker}\t{rank}\t{pid}\t{int(leads)}"


def parse_process(text: str) -> tuple[str, int, int, bool]:
    """Worker, rank, pid, whether it leads. Raises ValueError."""
    worker, rank, pid, leads = text.split("\t")
    return worker, int(rank), int(pid), leads == "1"
