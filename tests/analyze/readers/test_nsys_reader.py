"""The nsys reader: a real export, real captures of this machine's nsys, old and new schemas, missing and
damaged tables.
"""

from __future__ import annotations

import contextlib
import random
import re
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.shared import real  # noqa: E402
from tests.nsys_stand_in import answering_nsys  # noqa: E402
from tests.real_nsys import profile  # noqa: E402

from rlprof_ops.analyze.columns import take  # noqa: E402
from rlprof_ops.analyze.metrics.gpu_time import gpu_unions  # noqa: E402
from rlprof_ops.analyze.metrics.phases import find_phases, find_steps  # noqa: E402
from rlprof_ops.analyze.readers import UnreadableReport, read_report  # noqa: E402
from rlprof_ops.analyze.readers.nsys_sqlite import read_nsys_sqlite  # noqa: E402
from rlprof_ops.analyze.run.identity import ReportFile  # noqa: E402
from rlprof_ops.analyze.run.summary import summarise  # noqa: E402

UTC = 1_795_227_257_000_000_000
KERNEL_OLD = (
    "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId"
    " INTEGER, demangledName INTEGER, shortName INTEGER"
)


def export(
    path: Path,
    *,
    domain: bool = True,
    system_clock: int | None = None,
    driver: bool = False,
    text_ids: bool = True,
) -> Path:
    """A small export: two steps with phases in our domain, a kernel launched in each train, one range of
    another domain.
    """
    c = sqlite3.connect(path)
    c.execute("create table StringIds(id INTEGER PRIMARY KEY, value TEXT)")
    names = [
        "gemm",
        "cudaLaunchKernel",
        "step 3",
        "generation",
        "train",
        "other",
        "rlprof",
        "step 4",
        "aten::mm, op_id = 7",
    ]
    c.executemany("insert into StringIds values(?,?)", enumerate(names))
    c.execute(f"create table CUPTI_ACTIVITY_KIND_KERNEL({KERNEL_OLD})")
    c.execute(
        f"create table CUPTI_ACTIVITY_KIND_{'DRIVER' if driver else 'RUNTIME'}(start INTEGER, end INTEGER,"
        " globalTid INTEGER, correlationId INTEGER, nameId INTEGER)"
    )
    c.execute(
        "create table NVTX_EVENTS(start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid"
        " INTEGER, textId INTEGER, domainId INTEGER)"
    )
    c.execute(
        "create table TARGET_INFO_SESSION_START_TIME(utcEpochNs"
        f" INTEGER{', systemClockNs INTEGER' if system_clock is not None else ''})"
    )
    c.execute(
        "insert into TARGET_INFO_SESSION_START_TIME values("
        + (f"{UTC},{system_clock})" if system_clock is not None else f"{UTC})")
    )
    c.execute("create table TARGET_INFO_SYSTEM_ENV(name TEXT, value TEXT)")
    c.execute("insert into TARGET_INFO_SYSTEM_ENV values('Hostname','gpu7')")
    zero, thread = system_clock or 0, (4242 << 24) | 4243
    if domain:
        c.execute("insert into NVTX_EVENTS values(?,null,75,'rlprof',?,null,1)", (zero, thread))

    def mark(name: int, start: int, end: int | None, kind: int = 59, dom: int = 1) -> None:
        text, text_id = (None, name) if text_ids else (names[name], None)
        c.execute(
            "insert into NVTX_EVENTS values(?,?,?,?,?,?,?)",
            (zero + start, None if end is None else zero + end, kind, text, thread, text_id, dom),
        )

    for index, step in enumerate((2, 7)):
        at = 1_000_000 * (index + 1)
        mark(step, at, at + 900_000)
        mark(3, at + 10_000, at + 300_000)
        mark(4, at + 310_000, None if index else at + 800_000, 60)
        mark(5, at + 5_000, at + 890_000, 59, 0)
        mark(8, at + 320_000, at + 330_000, 59, 0)
        table = "DRIVER" if driver else "RUNTIME"
        c.execute(
            f"insert into CUPTI_ACTIVITY_KIND_{table} values(?,?,?,?,1)",
            (zero + at + 400_000, zero + at + 405_000, thread, index + 1),
        )
        c.execute(
            "insert into CUPTI_ACTIVITY_KIND_KERNEL values(?,?,0,1,7,?,0,0)",
            (zero + at + 850_000, zero + at + 950_000, index + 1),
        )
    c.commit()
    c.close()
    return path


@pytest.mark.parametrize("text_ids", [True, False])
@pytest.mark.parametrize("driver", [True, False])
@pytest.mark.parametrize("system_clock", [None, 35_000_000_000])
def test_schemas_old_and_new_give_the_same(
    tmp_path: Path, system_clock: int | None, driver: bool, text_ids: bool
) -> None:
    trace = read_nsys_sqlite(
        export(tmp_path / "r.sqlite", system_clock=system_clock, driver=driver, text_ids=text_ids)
    )
    assert (
        trace.origin.host == "gpu7"
        and trace.origin.pid == 4242
        and trace.origin.on_utc
        and not trace.truncated
    )
    steps = find_steps(trace)
    assert [(s.step, s.start - UTC) for s in steps] == [(3, 1_000_000), (4, 2_000_000)]
    phases = find_phases(trace, steps)
    assert [(p.step, p.phase, p.end - p.start) for p in phases][:2] == [
        (3, "generation", 290_000),
        (3, "train", 490_000),
    ]
    assert phases[-1].end == steps[-1].end  # the range that was still open lasts to the end
    summary = summarise(trace, ReportFile("r.sqlite", "nsight", "w", 0, "", None, 3, 5, None, 1))
    assert [(k.phase, k.name, k.count) for k in summary.kernels] == [
        ("train", "gemm", 2)
    ]  # by launch: they run after it
    assert trace.names[int(trace.ops.name[0])] in ("other", "aten::mm")


def test_real_export_of_two_h100() -> None:
    path = real("h100_2gpu_part.sqlite")
    trace = read_nsys_sqlite(path)
    c = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    assert len(trace.gpu) == sum(
        c.execute(f"select count(*) from CUPTI_ACTIVITY_KIND_{k}").fetchone()[0]
        for k in ("KERNEL", "MEMCPY", "MEMSET")
    )
    top = dict(
        c.execute(
            "select s.value, sum(end-start) from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on"
            " s.id=k.demangledName group by 1"
        )
    )
    ours: Counter[str] = Counter()
    for code, length in zip(trace.gpu.name.tolist(), trace.gpu.duration.tolist(), strict=True):
        ours[trace.names[code]] += length
    assert {name: ours[name] for name in top} == top
    for device in (0, 1):
        times = gpu_unions(take(trace.gpu, trace.gpu.device == device), trace.names).whole()
        rows = [
            (a, b)
            for k in ("KERNEL", "MEMCPY", "MEMSET")
            for a, b in c.execute(f"select start, end from CUPTI_ACTIVITY_KIND_{k} where deviceId={device}")
        ]
        assert times.busy_ns == _covered(rows)
        assert times.window_ns == max(b for _, b in rows) - min(a for a, _ in rows)
    assert (
        trace.origin.host == "modal"
        and trace.gpu.start[0] - 1779630014975716426 + 35255823190 == 155357525002
    )


def _covered(rows: list[tuple[int, int]]) -> int:
    total, reach = 0, 0
    for start, end in sorted(rows):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


@pytest.mark.parametrize(
    "table",
    [
        "StringIds",
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "NVTX_EVENTS",
        "TARGET_INFO_SESSION_START_TIME",
        "TARGET_INFO_SYSTEM_ENV",
    ],
)
def test_missing_tables_are_normal(tmp_path: Path, table: str) -> None:
    path = export(tmp_path / "r.sqlite")
    c = sqlite3.connect(path)
    c.execute(f"drop table {table}")
    c.commit()
    c.close()
    trace = read_nsys_sqlite(path)
    assert trace.origin.on_utc is (table != "TARGET_INFO_SESSION_START_TIME")
    summarise(trace, ReportFile("r.sqlite", "nsight", "w", 0, "", None, None, None, None, 1))


def test_memory_that_was_allocated_before_the_window_is_not_below_zero(tmp_path: Path) -> None:
    """30 GiB of before are freed, then 10 are allocated: those 10 there are at least."""
    path = export(tmp_path / "r.sqlite")
    c = sqlite3.connect(path)
    c.execute(
        "create table CUDA_GPU_MEMORY_USAGE_EVENTS(start INTEGER, globalPid INTEGER, deviceId INTEGER,"
        " bytes INTEGER, memoryOperationType INTEGER)"
    )
    gib = 1 << 30
    rows = [(10, 7 << 24, 0, 30 * gib, 1), (20, 7 << 24, 0, 10 * gib, 0), (10, 7 << 24, 1, 5 * gib, 0)]
    c.executemany("insert into CUDA_GPU_MEMORY_USAGE_EVENTS values(?,?,?,?,?)", rows)
    c.commit()
    c.close()
    memory = read_nsys_sqlite(path).memory
    held = sorted(zip(memory.device.tolist(), memory.allocated_bytes.tolist(), strict=True))
    assert held == [(0, 0), (0, 10 * gib), (1, 5 * gib)]


def test_values_of_the_wrong_type_cost_their_row(tmp_path: Path) -> None:
    path = export(tmp_path / "r.sqlite")
    c = sqlite3.connect(path)
    c.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values('soon', 'later', 0, 1, 7, 3, 0, 0)")
    c.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values(5, 1.5e300, 0, 1, 7, 3, 0, 0)")
    c.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values(5, 6, null, 1, null, null, 99999, 0)")
    c.execute("insert into NVTX_EVENTS values('x', null, 59, null, null, 4, 1)")
    c.commit()
    c.close()
    trace = read_nsys_sqlite(path)
    assert len(trace.gpu) == 3 and "CUPTI_ACTIVITY_KIND_KERNEL" in trace.truncated


def test_damaged_files_never_crash(tmp_path: Path) -> None:
    whole = export(tmp_path / "r.sqlite").read_bytes()
    rng = random.Random(3)
    path = tmp_path / "d.sqlite"
    for number in range(60):
        data = bytearray(whole[: rng.randrange(len(whole))] if number % 3 == 0 else whole)
        for _ in range(rng.randint(1, 30)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(bytes(data))
        try:
            read_report(path, cache=False)
        except UnreadableReport as error:
            assert str(path) in str(error)


def test_what_is_no_export_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    sqlite3.connect(path).execute("create table t(a)").connection.close()
    with pytest.raises(UnreadableReport, match="no nsys export"):
        read_report(path, cache=False)


def test_without_nsys_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("RLPROF_NSYS", raising=False)
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"x" * 100)
    with pytest.raises(
        UnreadableReport, match=r"no nsys to export it with \(it is not on PATH\); set RLPROF_NSYS"
    ):
        read_report(report, cache=False)
    export(tmp_path / "r.sqlite")  # an export beside it serves
    assert len(read_report(report, cache=False).gpu) == 2


def test_an_export_that_fails_once_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = tmp_path / "truth"
    export(truth)
    once = 'test -e "$0.failed" || { touch "$0.failed"; kill -SEGV $$; }'
    fake = answering_nsys(tmp_path, export=f'[ "$2" = --help ] && exit; {once}; cp {truth} "$7"')
    monkeypatch.setenv("RLPROF_NSYS", str(fake))
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"x" * 100)
    assert len(read_report(report, cache=False).gpu) == 2
    assert Path(f"{fake}.failed").exists()


def test_an_export_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlprof_ops.analyze.readers import nsys_export

    fake = answering_nsys(tmp_path, export="sleep 600 & sleep 600")
    monkeypatch.setenv("RLPROF_NSYS", str(fake))
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"x" * 100)
    with (
        pytest.raises(UnreadableReport, match="took longer than 1 s"),
        nsys_export.exported(report, timeout_s=1.0),
    ):
        pass


@pytest.mark.nsys
def test_a_real_capture_of_this_machine(tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    script = (
        "import nvtx, time\n"
        "for n in (3, 4):\n"
        "    with nvtx.annotate(f'step {n}', domain='rlprof'):\n"
        "        for phase, s in (('generation', 0.05), ('train', 0.1)):\n"
        "            with nvtx.annotate(phase, domain='rlprof'):\n"
        "                print(phase, time.time_ns()); time.sleep(s); print(phase, time.time_ns())\n"
    )
    out = tmp_path / "policy_worker_rank0_step3-4_n1_77.nsys-rep"
    done = profile(out, script)
    truth = [
        int(line.split()[1])
        for line in done.stdout.splitlines()
        if line.startswith(("generation ", "train "))
    ]
    trace = read_report(out)
    phases = find_phases(trace, find_steps(trace))
    assert [(p.step, p.phase) for p in phases] == [
        (3, "generation"),
        (3, "train"),
        (4, "generation"),
        (4, "train"),
    ]
    # A range is around its two prints: on a busy machine something may come between, but never before.
    around, late = [], []
    for phase, start, end in zip(phases, truth[::2], truth[1::2], strict=True):
        around.append((phase.end - phase.start) / (end - start))
        late.append(start - phase.start)  # nsys's UTC against time.time_ns()
    assert min(around) == pytest.approx(1, rel=0.02) and min(around) > 0.999, around
    assert abs(min(late, key=abs)) < 5_000_000 and min(late) > -5_000_000, late


@pytest.mark.nsys
def test_a_step_in_which_a_recorded_process_did_nothing_is_a_step_of_it(tmp_path: Path) -> None:
    """The driver told of one before its only range and one after it; a third began before the recording."""
    pytest.importorskip("nvtx")
    script = (
        "import nvtx, time\n"
        "def step():\n"
        "    print(time.time_ns()); time.sleep(0.2); print(time.time_ns()); time.sleep(0.1)\n"
        "step()\n"
        "with nvtx.annotate('generation', domain='rlprof'): time.sleep(0.1)\n"
        "step()\n"
    )
    out = tmp_path / "agent_loop_rank0_step3-3_n1_77.nsys-rep"
    before, over, later, end = map(int, re.findall(r"^\d{19}$", profile(out, script).stdout, re.MULTILINE))
    trace = read_report(out)
    for told in ((3, before, over), (3, later, end)):
        [step] = steps = find_steps(trace, 3, 4, (told,))
        assert (step.step, step.start, step.end, step.marked) == (*told, True)
        assert find_phases(trace, steps) == ()
    [window] = find_steps(trace, 3, 4, ((3, before - 3_600_000_000_000, over),))
    assert not window.marked
    assert [phase.phase for phase in find_phases(trace, (window,))] == ["generation"]


def test_operators_have_their_names_whatever_torch_writes_behind_them(tmp_path):
    """As `torch.autograd.profiler.emit_nvtx` does: any of seq, op_id and sizes, each with its own text."""
    path = export(tmp_path / "r.sqlite", text_ids=False)
    written = {
        b"aten::mm, seq = 7, op_id = 8, sizes = [[2, 3], []]": "aten::mm",
        b"aten::add, op_id = 9, sizes = [[1]]": "aten::add",
        b"aten::\xff, op_id = 10": "aten::\ufffd",
        "aten::müll, sizes = [[4], []], op_id = 11".encode(): "aten::müll",
        b"no operator, seq 5": None,
    }
    with contextlib.closing(sqlite3.connect(path)) as opened, opened:
        for at, text in enumerate(written):
            row = (at, at + 1, 59, text, 1 << 24, 5)
            opened.execute("insert into NVTX_EVENTS values(?, ?, ?, cast(? as text), ?, null, ?)", row)

    trace = read_nsys_sqlite(path)

    operators = {trace.names[code] for code in trace.ops.name.tolist()}
    assert {name for name in written.values() if name} <= operators
    assert not [name for name in operators if "=" in name]
