"""One Chrome-trace JSON of all ranks for viewers that know no manifest: pids and flow ids of its own for
every file.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rlprof_ops.analyze.readers.chrome_events import ChromeEvents
from rlprof_ops.analyze.readers.read_error import UnreadableReport
from rlprof_ops.version import __version__

_PIDS_A_FILE = 1000
_FLOW_BITS = 40


def write_legacy(path: Path, files: Sequence[tuple[Path, str, int]], zero_ns: int) -> list[tuple[str, str]]:
    """Streams (trace, label, offset_ns) into one gzip; times are µs from `zero_ns`. Returns (file, reason) of
    what failed.

    Every process of every file gets its own pid (the device ordinals that Kineto uses as pids of GPUs
    collide), its name begins with the rank's label, and processes sort in the order of `files`.
    """
    failed = []
    encoder = msgspec.json.Encoder()
    with gzip.open(path, "wb", compresslevel=3) as out:
        made_by = (
            f'{{"otherData":{{"made_by":"rlprof-ops {__version__}"}},"displayTimeUnit":"ms","traceEvents":['
        )
        out.write(made_by.encode())
        first = True
        for index, (trace, label, offset_ns) in enumerate(files):
            pids: dict[str, int] = {}
            stream = ChromeEvents(trace, whole=True)
            try:
                for batch in stream:
                    lines = [
                        encoder.encode(e)
                        for e in (_moved(e, index, pids, (offset_ns - zero_ns) / 1000) for e in batch)
                        if e
                    ]
                    if lines:
                        out.write((b"" if first else b",\n") + b",\n".join(lines))
                        first = False
            except (UnreadableReport, OSError) as error:
                failed.append((str(trace), str(error)))
            for pid, ours in pids.items():
                for name, args in (
                    ("process_name", {"name": f"{label} {pid}"}),
                    ("process_sort_index", {"sort_index": index * _PIDS_A_FILE + ours % _PIDS_A_FILE}),
                ):
                    out.write(
                        (b"" if first else b",\n")
                        + encoder.encode({"ph": "M", "name": name, "pid": ours, "tid": 0, "args": args})
                    )
                    first = False
        out.write(b"]}")
    return failed


def _moved(
    event: dict[str, object], index: int, pids: dict[str, int], shift_us: float
) -> dict[str, object] | None:
    name = event.get("name")
    if event.get("ph") == "M" and name in ("process_name", "process_labels", "process_sort_index"):
        return None
    pid = str(event.get("pid", ""))
    if pid not in pids:
        pids[pid] = (index + 1) * _PIDS_A_FILE + min(len(pids), _PIDS_A_FILE - 1)
    event["pid"] = pids[pid]
    begin = event.get("ts")
    if isinstance(begin, (int, float)):
        event["ts"] = round(begin + shift_us, 3)
    if "id" in event and isinstance(event["id"], int):
        event["id"] = (index + 1) << _FLOW_BITS | event["id"] & ((1 << _FLOW_BITS) - 1)
    elif "id" in event:
        event["id"] = f"{index}:{event['id']}"
    return event
