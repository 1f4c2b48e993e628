"""The compiled scanner: whatever it takes, it reads as the reader in Python does; the rest it refuses."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import event as note
from hypothesis import given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.readers.scanned import assert_same, both, by_python, by_scanner, check_batch  # noqa: E402
from tests.analyze.readers.test_torch_reader import small  # noqa: E402
from tests.analyze.shared import TORCH_FILES, kernel, launch, mark, real, write_trace, x  # noqa: E402
from tests.needs import need  # noqa: E402

from rlprof_ops.analyze.columns import Trace  # noqa: E402
from rlprof_ops.analyze.readers import inflate, torch_trace  # noqa: E402
from rlprof_ops.analyze.readers.scan import batches  # noqa: E402
from rlprof_ops.cli import _versions  # noqa: E402

SOURCE = Path(batches.__file__).with_name("_trace_scan.c")


@pytest.fixture(scope="module", autouse=True)
def _there() -> None:
    need("scanner")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A line a batch: whether the scanner took it."""
    lines: list[bool] = []
    scan = batches.BatchScanner.scan

    def noted(self: batches.BatchScanner, text: bytes, end: int) -> batches.Scanned | None:
        found = scan(self, text, end)
        lines.append(found is not None)
        return found

    monkeypatch.setattr(batches.BatchScanner, "scan", noted)
    return lines


# ---- Files.


@pytest.mark.parametrize("piece", [1 << 14, 1 << 17])
@pytest.mark.parametrize("name", TORCH_FILES)
def test_real_traces_are_equal_with_it_and_without(
    name: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflate, "PIECE_BYTES", piece)
    assert_same(*both(real(f"torch/{name}.json.gz"), monkeypatch))


def test_most_of_a_real_trace_is_taken(monkeypatch: pytest.MonkeyPatch, taken: list[bool]) -> None:
    monkeypatch.setattr(inflate, "PIECE_BYTES", 1 << 15)
    for name in TORCH_FILES:
        torch_trace.read_torch(real(f"torch/{name}.json.gz"))
    assert sum(taken) > 0.9 * len(taken) > 40


@pytest.mark.parametrize("indent", [None, 0, 4])
def test_made_traces_are_equal_in_any_layout(
    tmp_path: Path, indent: int | None, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    monkeypatch.setattr(inflate, "PIECE_BYTES", 2048)
    path = write_trace(tmp_path / "a.json", small(), indent, 1_790_857_026_000_000_000)
    assert_same(*both(path, monkeypatch))
    assert sum(taken) > 20


def tiny() -> bytes:
    said = {
        "Collective name": "allreduce",
        "dtype": "BFloat16",
        "In msg nelems": 4,
        "Process Group Ranks": [0, 1],
    }
    events = [
        mark("train", 1.0, 9.5),
        x("cpu_op", "aten::add", 2.125, 1.5, shapes=[[1, 2], []], note={"a": "}, {"}),
        launch(3.0, 1),
        kernel('k<"é">', 4.0, 0.75, correlation=1),
        {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1.0, "cat": "ac2g", "name": "ac2g"},
        kernel("nccl", 5.0, 2.0, correlation=2, **said),
        x("gpu_memcpy", "HtoD", 6.0, 1.0, 0, 7, bytes=8),
        mark("end", 11.0, 1.0),
    ]
    text = json.dumps({"baseTimeNanoseconds": 5, "traceEvents": events}, ensure_ascii=False)
    return text.encode()


@pytest.mark.parametrize("damage", ["flipped", "cut", "replaced"])
def test_a_damaged_file_has_the_same_outcome(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    monkeypatch.setattr(inflate, "PIECE_BYTES", 512)
    rng = random.Random(11)
    whole, path = tiny(), tmp_path / "t.json"
    path.write_bytes(whole)
    assert isinstance(torch_trace.read_torch(path), Trace) and sum(taken) >= 2
    for at in range(0, len(whole), 3 if damage == "replaced" else 1):
        if damage == "cut":
            text = whole[:at]
        else:
            byte = (
                whole[at] ^ 1 << rng.randrange(8) if damage == "flipped" else rng.choice(b'"\\{}[],:0\0\xff')
            )
            text = whole[:at] + bytes([byte]) + whole[at + 1 :]
        path.write_bytes(text)
        assert_same(*both(path, monkeypatch))


# ---- Batches.

OP = '{"cat": "cpu_op", "name": "a", "ts": 1.5, "dur": 2}'
KERNEL = '{"cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 0, "tid": 7, "args": {%s}}'
CALL = '{"cat": "cuda_runtime", "name": "k", "ts": 1, "dur": 1, "args": {%s}}'
FLOW = '{"cat": "ac2g", "ts": %s}'
SAMPLE = '{"cat": "cpu_instant_event", "name": "[memory]", "ts": 3.25, "ph": "i", "args": {%s}}'
SHAPED = '{"cat": "cpu_op", "name": "aten::mm", "ts": 1.5, "dur": 2, "args": {%s}}'
DIMS = '"Input Dims": [[2, 3], [3, 4]]'
TAKES = [
    OP,
    SHAPED % "",
    SHAPED % DIMS,
    SHAPED % f'{DIMS}, "Input type": ["float", "\u0066loat"], "Concrete Inputs": ["", "1."], "Ev Idx": 1',
    SHAPED % '"Input Dims": null, "Input type": ["float"]',
    SHAPED % '"Input Dims": {"a": [1e5, -0.5]}',
    (SHAPED % DIMS).replace('{"Input', '{ "Input').replace(": [[", ":\n[[ "),
    (SHAPED % "").replace("{}", "null"),
    '{"args": {' + DIMS + '}, "dur": 1, "ts": 2, "name": "aten::bmm", "cat": "cpu_op"}, ' + SHAPED % DIMS,
    OP[:-1] + ', "args": {"Input Dims": [1], "Input Dims": [2]}}',
    OP.replace('"cat": "cpu_op", ', ""),
    OP.replace("cpu_op", "Trace"),
    OP.replace("cpu_op", "Trace").replace('"a"', "[1]") + ", " + OP.replace("cpu_op", "Trace"),
    '{"name": "process_name", "ph": "M", "ts": 0, "pid": 1, "tid": 0, "args": {"name": "python"}}, ' + OP,
    SAMPLE % '"Total Allocated": 5',
    SAMPLE % '"Total Allocated": 5, "Total Reserved": 8, "Device Id": 1, "Device Type": 1',
    SAMPLE % '"Total Allocated": 5, "Total Reserved": 8, "Device Id": 1, "Device Type": 0',
    SAMPLE % '"Total Reserved": 5, "device": "none"',
    (SAMPLE % "").replace("[memory]", "other").replace("3.25", "{}"),
    f" {OP}\t,\r\n{OP} ",
    '{"name":"é ☃ 𝄞 \\u00e9 \\"\\\\\\/\\b\\f\\n\\r\\t","cat":"user_annotation","ts":-1.25,"dur":-3,'
    '"pid":"Spans","tid":null}',
    '{"cat": "cpu_op", "name": "\\u0061", "ts": 0.5000, "dur": -0}, ' + OP,
    '{"cat": "cpu_op", "name": "a", "ts": 1682725898236845.123, "dur": 0.001, "pid": 1.5, "tid": 1}',
    '{"args": {"correlation": 5}, "dur": 1, "ts": 2, "name": "late", "cat": "cuda_driver"}',
    '{"args": null, "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}',
    KERNEL % "",
    KERNEL % '"device": -5, "stream": 99999999999, "correlation": -7, "bytes": 3',
    (KERNEL % '"bytes": 3').replace('"ts": 1', '"ts": 1682725898236845'),
    KERNEL % '"Collective name": "all", "Seq": 3, "Group size": "8", "Process Group Ranks": [ 0, 1 ]',
    KERNEL % '"Collective name": null, "dtype": {"a": [1e5, -0.5E-3, true, false, null]}',
    CALL % '"device": "no number here", "bytes": []',
    OP.replace("1.5", "16.000999999999998"),
    OP.replace("1.5", "-0.000000999"),
    OP.replace("1.5", "4398046511103.9999999"),
    OP.replace("1.5", "1682725898236845.9990003"),
    FLOW % "{}",
    FLOW % '"soon"',
    FLOW % "1e99",
    FLOW % ("[" * 60 + "]" * 60),
]
REFUSES = [
    "",
    " ",
    "[]",
    "{}",
    OP + ",",
    "," + OP,
    OP + OP,
    OP + "]",
    OP[:-1],
    OP.replace("cpu_op", "Trace").replace("1.5", '"1.5"'),
    OP.replace("cpu_op", "xpu_runtime"),
    SHAPED % f"{DIMS}, {DIMS}",
    SHAPED % '"Input \\u0044ims": []',
    (SHAPED % DIMS).replace("aten::mm", "aten::m\\u006d"),
    (SHAPED % "").replace("{}", "5"),
    OP.replace('"cpu_op"', "null"),
    SAMPLE % '"Total Allocated": null',
    SAMPLE % '"Total Allocated": 5, "Device Id": "0"',
    (SAMPLE % '"Total Allocated": 5').replace('"ts": 3.25, ', ""),
    (SAMPLE % '"Total Allocated": 5').replace("[memory", "\\u005bmemory"),
    OP.replace("cpu_op", "cpu_o\\u0070"),
    OP.replace("cat", "c\\u0061t"),
    OP.replace('"name": "a", ', ""),
    OP.replace('"ts": 1.5, ', ""),
    OP.replace(', "dur": 2', ""),
    OP.replace('"a"', "7"),
    OP.replace('"a"', '"\ud800"'),
    OP.replace('"a"', '"\\ud834\\udd1e"'),
    OP.replace('"a"', '"\\x"'),
    OP.replace('"a"', '"\\u00g0"'),
    OP.replace('"a"', '"\t"'),
    OP.replace("1.5", "1.0005"),
    OP.replace("1.5", "1.00099"),
    OP.replace("1.5", "1.000899999"),
    OP.replace("1.5", "1.0000100"),
    OP.replace("1.5", "1e3"),
    OP.replace("1.5", "01"),
    OP.replace("1.5", "1."),
    OP.replace("1.5", ".5"),
    OP.replace("1.5", "+1"),
    OP.replace("1.5", "-"),
    OP.replace("1.5", "NaN"),
    OP.replace("1.5", "Infinity"),
    OP.replace("1.5", '"1.5"'),
    OP.replace("1.5", "null"),
    OP.replace("1.5", "4611686018427388"),
    OP.replace("1.5", "9" * 19),
    OP.replace("1.5", '1.5, "ts": 2'),
    OP.replace("1.5", '1.5, "cat": "cpu_op"'),
    OP.replace("1.5", '1.5, "pid": [1]'),
    OP.replace("1.5", '1.5, "tid": true'),
    OP.replace("1.5", '1.5, "args": 5'),
    OP.replace("1.5", '1.5, "ph": 5'),
    KERNEL % '"device": 1.0',
    KERNEL % '"device": "1"',
    KERNEL % '"device": null',
    KERNEL % '"device": 1, "device": 2',
    KERNEL % '"stream": 1234567890123456789',
    KERNEL % '"bytes": 1e3',
    KERNEL % '"correlation": 01',
    KERNEL % '"\\u0073tream": 1',
    KERNEL % '"a": 1,',
    (KERNEL % "").replace('"pid": 0', '"pid": "0"'),
    (KERNEL % "").replace('"args": {}', '"args": null'),
    (CALL % "").replace('"args": {}', '"args": []'),
    FLOW % "1e999",
    FLOW % "1e100",
    FLOW % ("1" * 41),
    FLOW % "tru",
    FLOW % "[1,]",
    FLOW % "[,]",
    FLOW % "[1 2]",
    FLOW % '{"a"}',
    FLOW % '{"a": 1,}',
    FLOW % '{"a": 1]',
    FLOW % "{1: 1}",
    FLOW % ("[" * 61 + "]" * 61),
    FLOW % "1, 2",
    FLOW % "",
]


@pytest.mark.parametrize("text", TAKES)
def test_it_takes(text: str) -> None:
    assert check_batch(text.encode())


@pytest.mark.parametrize("text", REFUSES)
def test_it_refuses(text: str) -> None:
    assert by_scanner(text.encode("utf-8", "surrogatepass")) is None


@pytest.mark.parametrize(
    "name",
    [
        b"\xff",
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xc3",
        b"\xe2\x98",
        b"\x80",
    ],
)
def test_it_refuses_what_is_no_utf8(name: bytes) -> None:
    for before in (b"", b"0123456789abcdef", b"01234567"):
        assert by_scanner(OP.encode().replace(b'"a"', b'"' + before + name + b'"')) is None
        assert by_scanner((FLOW % '"!"').encode().replace(b"!", before + name)) is None


def test_every_cut_of_a_batch_but_at_its_end_is_refused() -> None:
    events = [OP, KERNEL % '"Collective name": "all"', CALL % '"correlation": 1', FLOW % '{"a": [{}]}']
    text = ", ".join(events).encode()
    ends = [at for at in range(len(text) + 1) if by_scanner(text[:at]) is not None]
    assert ends == [len(", ".join(events[:count])) for count in (1, 2, 3, 4)]
    assert all(check_batch(text[:at]) for at in ends)


def test_the_end_is_that_of_the_batch_and_not_of_the_text() -> None:
    scanner = batches.new_scanner()
    assert scanner is not None
    text = (OP + ", " + OP).encode()
    found = scanner.scan(text, len(OP))
    assert found is not None and found.events == 1
    with pytest.raises(ValueError, match="outside"):
        scanner.scan(text, len(text) + 1)


def test_codes_hold_over_the_batches_of_a_file_and_for_those_that_it_refuses() -> None:
    other = OP.replace('"a"', '"b"')
    alike = OP.replace('"a"', '"\\u0061"')  # another spelling, the same name
    texts = [
        text.encode() for text in (OP, other + ", " + OP, alike + ", " + other, OP.replace('"a"', '"c"'))
    ]
    assert by_scanner(*texts) == by_python(*texts)
    scanner = batches.new_scanner()
    assert scanner is not None
    refused = OP.replace('"a"', '"new"') + ", " + OP[:-1]
    assert scanner.scan(refused.encode(), len(refused)) is None
    found = scanner.scan(refused.encode(), refused.index("}") + 1)
    assert found is not None and found.names == ["new"]


def test_many_names_are_told_apart() -> None:
    texts = [
        ", ".join(OP.replace('"a"', f'"{"x" * (n % 40)}{n}"') for n in range(first, first + 4000)).encode()
        for first in range(0, 12000, 3000)
    ]
    assert by_scanner(*texts) == by_python(*texts)


TEXT = st.one_of(
    st.sampled_from(["a", "aten::add", "", "}, {", '"', "\\", "é", "☃", "𝄞", "\n", "x" * 300, "[memory]"]),
    st.text(max_size=40),
)
QUOTED = st.builds(lambda text, ascii: json.dumps(text, ensure_ascii=ascii), TEXT, st.booleans())
DECIMALS = st.decimals(-(10**6), 10**6, allow_nan=False, allow_infinity=False)
NUMBER = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.integers(0, 10**16).map(lambda n: f"{n // 1000}.{n % 1000:03d}"),
    st.integers(0, 1000).map(str),
    DECIMALS.map(lambda number: str(number).replace("E+", "e")),
    st.sampled_from(["-0", "0.0", "1e5", "1E-7", "1e400", "-1e308", "00", "1.", "0.1000", "4398046511104.5"]),
)


def listed(values: list[str]) -> str:
    return "[" + ", ".join(values) + "]"


def as_object(members: list[tuple[str, str]], space: str = " ") -> str:
    return "{" + ",".join(f"{space}{key}{space}:{space}{value}{space}" for key, value in members) + "}"


VALUE = st.recursive(
    st.one_of(QUOTED, NUMBER, st.sampled_from(["true", "false", "null", "nul"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(listed),
        st.lists(st.tuples(QUOTED, inner), max_size=4).map(as_object),
    ),
    max_leaves=8,
)
SMALL = st.integers(-2, 2**33).map(str)
MOSTLY_GOOD = st.integers(0, 10**6).map(lambda n: f"{n}.{n % 1000:03d}")
NUMBERS = ["device", "stream", "correlation", "bytes", "Total Allocated", "Total Reserved", "Device Id"]
NUMBERS += ["Device Type"]
OBJECTS = ["Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size", "Process Group Name"]
OBJECTS += ["Process Group Description", "Process Group Ranks", "Seq", "other", "cat", "name", "ts", "pid"]
HOST = ["cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "hip_runtime"]
SOUND = [
    *HOST,
    "cpu_instant_event",
    "Trace",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "ac2g",
    "python_function",
    "fwdbwd",
]


@st.composite
def events(draw: st.DrawFn) -> str:
    """One event: often sound, with the odd thing here and there, in any order and layout."""
    odd = draw(st.integers(0, 5)) == 0
    space = draw(st.sampled_from(["", " ", "\n    ", "\t\r\n "]))
    category = draw(st.sampled_from([*SOUND, "xpu_runtime"] if odd else SOUND))
    arguments = draw(st.lists(st.sampled_from(NUMBERS + OBJECTS), max_size=6, unique=not odd))
    said = [(f'"{key}"', draw(VALUE if odd or key in OBJECTS else SMALL)) for key in arguments]
    identity = st.one_of(SMALL, QUOTED) if category in HOST else SMALL
    members = [
        ("cat", f'"{category}"'),
        (
            "name",
            '"[memory]"' if category == "cpu_instant_event" and not odd else draw(VALUE if odd else QUOTED),
        ),
        ("ts", draw(NUMBER if odd else MOSTLY_GOOD)),
        ("dur", draw(NUMBER if odd else MOSTLY_GOOD)),
        ("pid", draw(VALUE if odd else identity)),
        ("tid", draw(VALUE if odd else identity)),
        ("args", as_object(said, space)),
    ]
    if odd:
        members += draw(st.lists(st.sampled_from(members), max_size=1))
        members = [member for member in members if draw(st.integers(0, 9))]
        members.append((draw(st.sampled_from(["ph", "id", "x", "args"])), draw(VALUE)))
    return as_object([(f'"{key}"', value) for key, value in draw(st.permutations(members))], space)


@settings(deadline=None, max_examples=200)
@given(st.lists(events(), min_size=1, max_size=6).map(", ".join))
def test_what_it_takes_is_what_the_others_read(text: str) -> None:
    note("taken" if check_batch(text.encode("utf-8", "surrogatepass")) else "refused")


def test_most_sound_batches_are_taken() -> None:
    """So that the test above has something to compare."""
    outcomes: list[bool] = []

    @settings(deadline=None, max_examples=60, database=None, derandomize=True)
    @given(events())
    def draw(text: str) -> None:
        outcomes.append(by_scanner(text.encode("utf-8", "surrogatepass")) is not None)

    draw()
    assert sum(outcomes) > len(outcomes) / 3


# ---- With it and without.


def test_a_file_of_batches_that_it_refuses_is_not_scanned_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    monkeypatch.setattr(inflate, "PIECE_BYTES", 512)
    path = write_trace(tmp_path / "t.json", [x("xpu_runtime", "call", 1.0 + n, 1.0) for n in range(400)])
    offered: list[bool] = []
    scan = batches.BatchScanner.scan

    def noted(self: batches.BatchScanner, text: bytes, end: int) -> batches.Scanned | None:
        offered.append(self._compiled is not None)
        return scan(self, text, end)

    monkeypatch.setattr(batches.BatchScanner, "scan", noted)
    assert_same(*both(path, monkeypatch))
    assert sum(offered) == batches._REFUSALS < len(offered) / 4 and not any(taken)


def test_where_it_was_not_built_traces_are_read_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    monkeypatch.setattr(inflate, "PIECE_BYTES", 512)
    path = write_trace(tmp_path / "t.json", small(40))
    built_earlier = ModuleType("_trace_scan")
    monkeypatch.setitem(sys.modules, "rlprof_ops.analyze.readers.scan._trace_scan", built_earlier)
    assert "not of this version" in batches.unused() and batches.new_scanner() is None
    monkeypatch.setitem(sys.modules, "rlprof_ops.analyze.readers.scan._trace_scan", None)
    assert "not built" in batches.unused()
    trace = torch_trace.read_torch(path)
    assert len(trace.gpu) == 40 and not taken
    monkeypatch.undo()
    monkeypatch.setattr(inflate, "PIECE_BYTES", 512)
    assert_same(trace, torch_trace.read_torch(path))


def test_a_variable_turns_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[bool]) -> None:
    assert batches.unused() == ""
    monkeypatch.setenv("RLPROF_SCANNER", "0")
    monkeypatch.setattr(inflate, "PIECE_BYTES", 512)
    assert len(torch_trace.read_torch(write_trace(tmp_path / "t.json", small(40))).gpu) == 40
    assert not taken and batches.unused() == "RLPROF_SCANNER is 0"
    assert json.loads(_versions())["scanner"] == "RLPROF_SCANNER is 0"
    monkeypatch.delenv("RLPROF_SCANNER")
    assert json.loads(_versions())["scanner"] == "used"


@pytest.mark.parametrize("more", [[], ["-DTRACE_SCAN_PORTABLE"]], ids=["sse2", "portable"])
def test_it_compiles_without_a_warning(tmp_path: Path, more: list[str]) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    assert compiler, "it was built, so there is a compiler"
    include = sysconfig.get_paths()["include"]
    options = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-c", f"-I{include}", *more]
    subprocess.run([compiler, *options, str(SOURCE), "-o", str(tmp_path / "scan.o")], check=True, timeout=60)


def test_gzip_makes_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "PIECE_BYTES", 512)
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(tiny()))
    assert_same(*both(path, monkeypatch))
