"""Hostile batches for the scanner, by hand: mutations of real ones, each compared with the reader in Python.

    python -m tests.analyze.readers.fuzz_scanner 120 [SEED [SHARE]]

Runs for so many seconds and prints how many batches it tried and how many the scanner took. Of SHARE of them
(0.05) a file is made and read with the scanner and without: where it is JSON, what was read and what is said
to be lost are all of its events, by a count of their own. A negative SHARE compares nothing: many more
batches for the memory alone. With the memory checked, in a copy of the checkout or with the module built
again afterwards:

    cd python/rlprof_ops/analyze/readers/scan
    gcc -std=c11 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -shared -fPIC \\
        -I"$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["include"])')" \\
        _trace_scan.c -o _trace_scan.abi3.so
    cd - && LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \\
        ASAN_OPTIONS=detect_leaks=0 python -m tests.analyze.readers.fuzz_scanner 120
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.analyze.readers.json_events import count_events
from tests.analyze.readers.scanned import assert_same, by_python, by_scanner
from tests.analyze.readers.test_scanner import OP, REFUSES, TAKES
from tests.analyze.shared import TORCH_FILES, real

from rlprof_ops.analyze.columns import Trace
from rlprof_ops.analyze.readers import UnreadableReport
from rlprof_ops.analyze.readers.scan import batches
from rlprof_ops.analyze.readers.torch_trace import read_torch

PIECES = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"0", b"-", b".", b"e", b"\0", b"\xff"),
    *(b"null", b"true", b"1e400", b"9" * 20, b"\\u00e9", b"\\ud800", b"\xc3\xa9", b"\xe2\x98"),
    *(b"[" * 70, b"]" * 70, b'{"a":' * 70, b"4611686018427387904", b".9999999", b"1682725898236845"),
    *(b'"cat": "kernel"', b'"ts": 1.5', b'"dur": 0', b'"name": "n"', b'"pid": 1', b'"args": {}'),
    *(b'"device": 1', b'"stream": null', b'"correlation": -1', b'"bytes": 8', b'"Collective name": "all"'),
    *(b'"cat": "cpu_instant_event"', b'"name": "[memory]"', b'"Total Allocated": 5', b'"cat": "Trace"'),
    *(b'"cat": "cpu_op"', b'"name": "aten::mm"', b'"Input Dims": [[1]]', b'"Concrete Inputs": [""]'),
]  # fmt: skip


def seeds(rng: random.Random) -> list[bytes]:
    """Batches of one to six events, of every real trace and of the tests."""
    found = [text.encode("utf-8", "surrogatepass") for text in TAKES + REFUSES]
    for name in TORCH_FILES:
        events = json.loads(gzip.decompress(real(f"torch/{name}.json.gz").read_bytes()))["traceEvents"]
        for _ in range(40):
            first, indent = rng.randrange(len(events)), rng.choice([None, None, 2])
            chosen = events[first : first + rng.randint(1, 6)]
            found.append(", ".join(json.dumps(event, indent=indent) for event in chosen).encode())
    return found


def mutated(rng: random.Random, text: bytes, others: list[bytes]) -> bytes:
    made = bytearray(text)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(7):
            case 0 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 1:
                made[at : at + rng.randint(1, 8)] = b""
            case 2:
                made[at:at] = rng.choice(PIECES)
            case 3:
                made[at : at + rng.randint(1, 6)] = rng.choice(PIECES)
            case 4:
                begin = rng.randrange(len(made) + 1)
                made[at:at] = made[begin : begin + rng.randint(1, 60)]
            case 5:
                del made[at:]
            case 6:
                other = rng.choice(others)
                made[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(made)


def outcome(path: Path, scanner: str) -> Trace | str:
    os.environ["RLPROF_SCANNER"] = scanner
    try:
        return read_torch(path)
    except UnreadableReport as error:
        return error.reason


def check_file(path: Path, batch: bytes) -> bool:
    """Reads a file of the batch and what follows it both ways; whether it is JSON, so that its events were
    counted and none was lost in silence.
    """
    path.write_bytes(b'{"traceEvents": [' + batch + b", " + OP.encode() + b'], "last": 1}')
    other, found = outcome(path, "0"), outcome(path, "1")
    assert_same(found, other)
    held = count_events(path.read_bytes())
    if held is None:
        return False
    assert isinstance(found, Trace) and (found.events + found.damaged, found.truncated) == (held, ""), held
    return True


def main() -> None:
    seconds, seed = float(sys.argv[1]), int((sys.argv[2:] or ["1"])[0])
    whole_files = float((sys.argv[3:] or ["0.05"])[0])
    rng = random.Random(seed)
    texts, tried, taken, files, sound = seeds(rng), 0, 0, 0, 0
    scanner = batches.new_scanner()
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < until:
            text = mutated(rng, rng.choice(texts), texts)
            tried += 1
            if whole_files < 0:
                scanner = scanner if tried % 512 else batches.new_scanner()
                taken += scanner is not None and scanner.scan(text, len(text)) is not None
                continue
            found = by_scanner(text)
            try:
                if found is not None:
                    taken += 1
                    assert found == by_python(text), "the scanner reads otherwise"
                    if rng.randrange(8) == 0:
                        texts[rng.randrange(len(texts))] = text  # what is taken leads on to other shapes
                if rng.random() < whole_files:
                    files += 1
                    sound += check_file(Path(folder) / "t.json", text)
            except AssertionError as error:
                raise SystemExit(f"seed {seed}, batch {tried}: {error}: {text!r}") from error
    print(
        f"seed {seed}: {tried} batches, {taken} of them taken; {files} files, {sound} of them JSON whose"
        f" events were counted; {batches.unused() or 'with the scanner'}"
    )


if __name__ == "__main__":
    main()
