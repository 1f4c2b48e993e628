"""What `_trace_scan.c` is to Python."""

Part = tuple[int, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]
"""(kind, start, duration, name, track, correlation, device, stream, size, collective): arrays of int64 and
int32, -1 where there is none. Of a sample of the allocator the correlation is what is allocated, the size
what is reserved.
"""

class Scanner:
    def scan(self, text: bytes, end: int, /) -> tuple[int, list[Part], bytes, bytes, bytes] | None:
        """(events, parts, new names, new tracks, new collectives), the last three as JSON lists."""
