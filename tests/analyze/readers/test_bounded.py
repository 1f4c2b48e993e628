"""Hostile files under a limit on address space and time: each ends in a line of the report, and the
process lives on.
"""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

pytest.importorskip("msgspec")
pytest.importorskip("isal")

from tests.analyze.shared import kernel, launch, mark, real

LIMIT_GIB = 0.5
PEAK_GIB = 0.3  # of memory that is in use: the bound of the design
SECONDS = 200
READ = """
import json, re, resource, sys
from pathlib import Path
from rlprof_ops.analyze.readers import UnreadableReport, read_report
from rlprof_ops.analyze.run import summary
from rlprof_ops.analyze.run.identity import ReportFile
resource.setrlimit(resource.RLIMIT_CPU, (50, 50))
def peak():  # not ru_maxrss, which begins with the peak of the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 2**20
for name in sys.argv[2:]:
    path = Path(name)
    report = ReportFile(path.name, "torch", "w", 0, "", None, None, None, None, path.stat().st_size)
    found = summary.summarise_file(path.parent, report, cache=False)[0]
    said = found.reason if isinstance(found, summary.Unread) else f"read {found.events} {found.truncated}"
    print(json.dumps([path.name, said, peak()]), flush=True)
"""


def read(files: list[Path]) -> dict[str, tuple[str, float]]:
    """What a process of its own says of each file, and its peak in GiB after it."""
    python = [sys.executable, "-c", READ, "-", *map(str, files)]
    limited = ["bash", "-c", f'ulimit -v {4 << 20}; exec "$@"', "-", *python]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(files), done.stderr[-3000:]
    return {name: (said, peak) for name, said, peak in lines}


def packed(path: Path, head: bytes, piece: bytes, times: int, tail: bytes) -> Path:
    """A gzip file of `times` pieces, made without holding them."""
    with open(path, "wb") as file:
        squeeze = zlib.compressobj(1, zlib.DEFLATED, 31)
        file.write(squeeze.compress(head))
        for _ in range(times):
            file.write(squeeze.compress(piece))
        file.write(squeeze.compress(tail) + squeeze.flush())
    return path


MIB = 1 << 20
GOOD = json.dumps(kernel("k", 10.0, 1.0)).encode()
EVENT = json.dumps(
    {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": 5.0,
        "dur": 0.5,
        "args": {"stream": 7, "x": "y" * 600},
    }
).encode()
LONG = {
    "one line of whole events": (
        b'{"traceEvents":[' + EVENT,
        b"," + EVENT,
        150 * MIB // len(EVENT),
        b"]}",
        "read ",
    ),
    "one name without an end": (
        b'{"traceEvents":[' + GOOD + b',{"name":"',
        b"a" * MIB,
        150,
        b'"},' + GOOD + b"]}",
        "read ",
    ),
    "no list of events": (b'{"a":"', b"a" * MIB, 150, b'"}', "no traceEvents list"),
    "nested lists": (b'{"traceEvents":[' + GOOD + b"," + GOOD + b",", b"[" * MIB, 60, b"", "read 2"),
    "nested objects": (
        b'{"traceEvents":[' + GOOD + b"," + GOOD + b",",
        b'{"a":' * (MIB // 5),
        60,
        b"",
        "read ",
    ),
    "braces and commas": (
        b'{"traceEvents":[' + GOOD + b"," + GOOD + b",",
        b"},{" * (MIB // 3),
        30,
        b"",
        "read 2",
    ),
    "a bomb of zeros": (b"", b"\0" * MIB, 300, b"", "no traceEvents list"),
}


@pytest.mark.parametrize("what", LONG)
def test_a_long_line_stays_within_the_bound(tmp_path: Path, what: str) -> None:
    head, piece, times, tail, expected = LONG[what]
    path = packed(tmp_path / "long.json.gz", head, piece, times, tail)
    said, peak = read([path])["long.json.gz"]
    assert said.startswith(expected), said
    assert peak < PEAK_GIB


def test_damage_of_every_kind_in_one_process(tmp_path: Path) -> None:
    """Hundreds of damaged files one after the other: none ends the process, and what they take does not
    add up.
    """
    rng = random.Random(11)
    events = [
        mark("step 3", 0.5, 1000.25),
        *(
            e
            for i in range(60)
            for e in (launch(10.0 + i, i + 1), kernel("k", 12.0 + i, 0.7, correlation=i + 1))
        ),
    ]
    plain = json.dumps({"traceEvents": events}).encode()
    sqlite = bytearray(real("h100_2gpu_part.sqlite").read_bytes())
    files = []
    for number in range(150):
        source = bytearray(plain if number % 3 else gzip.compress(plain))
        kind = number % 5
        if kind == 0:
            source = source[: rng.randrange(len(source))]
        elif kind == 1:
            for _ in range(8):
                source[rng.randrange(len(source))] = rng.randrange(256)
        elif kind == 2:
            at = rng.randrange(len(source))
            source[at:at] = rng.choice(
                [b"{" * 5000, b"[" * 5000, b"9" * 5000, b'"', b"\\", b"\xff\xfe", b"1e999999"]
            )
        elif kind == 3:
            at = rng.randrange(len(source))
            del source[at : at + rng.randrange(200)]
        else:
            source = bytearray(rng.randbytes(rng.randrange(4000)))
        files.append(tmp_path / f"{number}.json")
        files[-1].write_bytes(source)
    for number in range(12):
        damaged = sqlite[: rng.randrange(len(sqlite))] if number % 2 else bytearray(sqlite)
        for _ in range(200):
            if len(damaged) > 200:
                damaged[rng.randrange(100, len(damaged))] = rng.randrange(256)
        files.append(tmp_path / f"{number}.sqlite")
        files[-1].write_bytes(damaged)
    said = read(files)
    assert len(said) == len(files)
    assert max(peak for _, peak in said.values()) < PEAK_GIB
