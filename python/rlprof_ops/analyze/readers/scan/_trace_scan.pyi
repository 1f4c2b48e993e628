"""What `_trace_scan.c` is to Python."""

Part = tuple[int, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]
"""(kind, start, duration, name, track, correlation, device, stream, size, told): arrays of int64 and
int32, -1 where there is none. Told: the collective of a kernel,
the shapes of an operator. Of a sample of the allocator the correlation is what is allocated, the size
what is reserved.
"""

class TraceScanner:
    def __init__(self, counted: tuple[bytes, ...]) -> None:
        """Keeps the shapes of the operators of these names, in their quotes. Raises TypeError."""

    def scan(self, text: bytes, end: int, /) -> tuple[int, list[Part], bytes, bytes, bytes, bytes] | None:
        """(events, parts, new names, new tracks, new collectives, new shapes), from names on JSON lists."""
