"""What a node shows: GPUs by a library with NVML's symbols, engines by their endpoint, /proc, and marks."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops import env_names
from rlprof_ops.host import processes
from rlprof_ops.recorder import rows
from rlprof_ops.recorder.detect.machine import gpu_faults
from rlprof_ops.recorder.node_recorder import NodeRecorder
from rlprof_ops.recorder.record_file import FOLDER, read_folder
from rlprof_ops.recorder.samples.engines import Engines
from rlprof_ops.recorder.samples.gpu import GpuSamples
from rlprof_ops.recorder.samples.host_samples import HostSamples
from rlprof_ops.recorder.samples.memory_kills import MemoryKills
from rlprof_ops.recorder.samples.rank_states import RankStates
from rlprof_ops.recorder.samples.step_marks import StepMarks
from rlprof_ops.runtime import marks, profiler
from rlprof_ops.runtime.on_demand.group_state import GroupState
from rlprof_ops.runtime.ranges.phase_times import phases_of
from tests.faults import memory
from tests.needs import need

# As vLLM 0.11 and SGLang 0.5 print them, cut down.
VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen2.5-0.5B"} 24.0
vllm:num_requests_running{engine="1",model_name="Qwen/Qwen2.5-0.5B"} 8.0
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen2.5-0.5B"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen2.5-0.5B"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="Qwen/Qwen2.5-0.5B"} 0.875
vllm:num_preemptions_total{engine="0",model_name="Qwen/Qwen2.5-0.5B"} 5.0
vllm:generation_tokens_total{engine="0",model_name="Qwen/Qwen2.5-0.5B"} %d
vllm:prompt_tokens_total{engine="0",model_name="Qwen/Qwen2.5-0.5B"} 1e+03
python_gc_objects_collected_total{generation="0"} 7312.0
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or pytest.skip("no C compiler; install gcc")
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml_stand_in.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=240)
    return str(library)


def test_gpus_by_nvml(nvml: str) -> None:
    gpus = GpuSamples(nvml)
    began = time.monotonic()
    gpus.look()
    time.sleep(0.05)
    first, second = gpus.look()
    most_s = time.monotonic() - began
    assert (first.busy_percent, first.temperature_c, first.power_w, first.sm_mhz) == (93, 64, 612, 1755)
    assert (first.memory_mib, first.memory_total_mib) == (60 << 10, 80 << 10), "without the driver's own"
    assert (second.memory_mib, second.memory_total_mib) == (61 << 10, 80 << 10), "an older driver's figure"
    assert (first.throttle, second.throttle) == (0x4, 0x40)
    assert first.pcie_mib_s == second.pcie_mib_s == 4, "each in its turn"
    assert 2 * 1024 / most_s - 1 <= first.nvlink_mib_s <= 2 * 1024 / 0.05 and second.nvlink_mib_s == 0
    assert (first.xid, first.ecc_errors, first.nvlink_errors) == (0, 3, 8), "since the first look"
    assert (second.xid, second.ecc_errors, second.nvlink_errors) == (79, 0, 0)
    assert gpu_faults("n1", [first, second]) == [
        "GPU 1 of node n1 has told XID 79 (it has fallen off the bus) and is throttled: hardware thermal"
        " slowdown",
        "GPU 0 of node n1 has counted 3 ECC errors and has counted 8 NVLink errors",
    ]
    gpus.close()


def test_a_node_without_nvml_has_no_gpus(tmp_path: Path) -> None:
    broken = tmp_path / "libnvidia-ml.so.1"
    broken.write_text("no library")
    for library in ("/nowhere/libnvidia-ml.so.1", str(broken), "libc.so.6"):
        assert GpuSamples(library).look() == []


@pytest.fixture
def endpoint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An engine that makes 1,000 tokens between two looks; a test may name an answer that leaves that out. It
    is waited for on a busy machine, too.
    """
    monkeypatch.setattr("rlprof_ops.recorder.samples.engines._TIMEOUT_S", 60.0)
    asked, leaves_out = [], getattr(request, "param", 0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(time.monotonic())
            text = VLLM % (1000 * len(asked))
            if len(asked) == leaves_out:
                text = "".join(line for line in text.splitlines(True) if "generation_tokens" not in line)
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()


def test_engines_by_their_endpoint(endpoint: str, tmp_path: Path) -> None:
    engines = Engines(str(tmp_path), f"{endpoint} http://127.0.0.1:9/metrics")
    began = time.monotonic()
    engines.look()
    time.sleep(0.1)
    (found,) = engines.look()
    most_s = time.monotonic() - began
    assert (found.running, found.waiting, found.cache_permille, found.preemptions) == (32, 3, 875, 5)
    assert 1000 / most_s <= found.tokens_s <= 10_000 and found.prompt_tokens_s == 0


@pytest.mark.parametrize("every", [1, 3])
def test_the_tokens_of_an_engine_are_read_back_whole_however_late_or_rare_its_looks_are(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setenv(env_names.ENGINES, endpoint)
    recorder = NodeRecorder(tmp_path, "n1")
    monkeypatch.setattr(recorder, "every", lambda: every)
    for number in range(7):
        time.sleep(random.uniform(0.1, 0.4))
        recorder.look()
        if number == 3:
            recorder.seal()
    recorder.seal()
    found = []
    for block in read_folder(tmp_path / FOLDER):
        rows_of = rows.LAYOUT[rows.ENGINE][0].iter_unpack(block.sections.get(rows.ENGINE, b""))
        found += [(block.base_ns + row[0] * rows.TENTH_NS, row[6]) for row in rows_of]
    told = [(now - then) / 1e9 * rate for (then, _), (now, rate) in itertools.pairwise(found)]
    assert told == pytest.approx([1000 * every] * (6 // every), rel=0.001)


@pytest.mark.parametrize("endpoint", [2], indirect=True)
def test_a_counter_that_an_answer_leaves_out_stands_still(endpoint: str, tmp_path: Path) -> None:
    engines = Engines(str(tmp_path), endpoint)
    assert [sample.made for _ in range(3) for sample in engines.look()] == [1000, 1000, 3000]


def test_a_server_is_found_by_its_command_line(tmp_path: Path) -> None:
    for pid, words in (
        (10, ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m", "--port", "8123"]),
        (11, ["python3", "-m", "sglang.launch_server", "--model-path", "m"]),
        (12, ["vim", "vllm.py"]),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes("\0".join(words).encode() + b"\0")
    assert sorted(Engines(str(tmp_path), "")._search()) == [
        "http://127.0.0.1:30000/metrics",
        "http://127.0.0.1:8123/metrics",
    ]


def test_a_server_tells_its_address(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's proxy is not asked for it, and what is no address, or of a process that has ended, is left."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    port = int(endpoint.split(":")[2].split("/")[0])
    marks.tell_engine("0.0.0.0", port)
    (told,) = (tmp_path / "marks").iterdir()
    ended = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "marks" / f"{ended}.engine").write_text("http://127.0.0.1:9/metrics\n")
    (tmp_path / "marks" / "1.engine").write_text("file:///etc/passwd\n")
    engines = Engines(urls="", node_dir=tmp_path)
    assert [*engines._told()] == [endpoint]
    assert [sample.url for sample in engines.look()] == [endpoint]
    told.unlink()
    assert engines.look() == []
    engines._found = {endpoint.replace("127.0.0.1", "localhost"): 0}  # by its command line
    assert [sample.url for sample in engines.look()] == [endpoint.replace("127.0.0.1", "localhost")]
    marks.tell_engine("0.0.0.0", port)
    assert [sample.url for sample in engines.look()] == [endpoint]
    told.unlink()
    monkeypatch.setattr("os.getpid", lambda: 1)
    marks.tell_engine("::1", 8000)
    assert Engines(urls="", node_dir=tmp_path)._told() == {"http://[::1]:8000/metrics": 1}


def test_the_host_moves() -> None:
    host = HostSamples()
    host.look()
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        pass
    found = host.look()
    assert 0 < found.cpu_permille <= 1000
    assert 0 < found.memory_mib < found.memory_total_mib


def test_phases_of_a_step_with_and_without_those_inside() -> None:
    second = 10**9
    found = phases_of(
        [["all_reduce", 3 * second, 4 * second, 1], ["train", 1 * second, 6 * second, 0],
         ["all_reduce", 8 * second, 9 * second, 0], ["reward", 6 * second, 8 * second, 0]],
        second,
    )  # fmt: skip
    assert (found["train"].seconds, found["train"].own_s, found["train"].begin_s) == (5.0, 4.0, 0.0)
    assert (found["all_reduce"].count, found["all_reduce"].own_s) == (2, 2.0)
    assert sum(phase.own_s for phase in found.values()) == 8.0


def test_ranks_tell_their_steps_and_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the real profiler, rank 1 of a job; what it told is read once."""
    monkeypatch.setenv("RLPROF_RECORD", "1")
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    prof = profiler.from_env(worker="policy_worker", rank=1, world_size=2)
    seen = StepMarks(tmp_path)
    for step in (1, 2):
        with prof.step(step):
            with prof.range("train"):
                with prof.range("inner"):
                    (now,) = seen.now()
                    assert (now.worker, now.rank, now.step, now.phase) == ("policy_worker", 1, step, "inner")
                assert seen.now()[0].phase == "train"
            assert seen.now()[0].phase == ""
    assert seen.now()[0].step == -2
    assert not prof.leads
    steps, windows = seen.look()
    assert [(step.worker, step.rank, step.leads, step.step) for step in steps] == [
        ("policy_worker", 1, False, 1),
        ("policy_worker", 1, False, 2),
    ]
    assert set(steps[0].phases) == {"train", "inner"} and not windows
    assert seen.look() == ([], [])
    prof.close()


def test_a_step_that_was_cut_is_no_step_that_took_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLPROF_RECORD", "1")
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    prof = profiler.from_env(worker="policy_worker", rank=1, world_size=2)
    with prof.step(1):
        pass
    with contextlib.suppress(RuntimeError), prof.step(2):
        raise RuntimeError("out of memory")
    with prof.step(3):
        pass
    prof.start_step(4)
    prof.close()  # the process ends in step 4, which may have stood still for hours
    steps, _ = StepMarks(tmp_path).look()
    assert [step.step for step in steps] == [1, 3]


def test_lines_of_whatever_shape_do_not_stop_the_reading(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    good = {"event": "step", "step": 3, "begin_ns": 10**18, "end_ns": 10**18 + 5, "phases": []}
    rows = [
        {"event": "registered", "worker": "driver", "rank": 0, "pid": 1},
        {**good, "phases": [["x"]]},
        {**good, "phases": None},
        {**good, "step": "x"},
        {**good, "end_ns": 1},
        good,
        {"event": "opened", "steps": None},
        {"event": "opened", "steps": [3, 4], "backend": "torch", "t_ns": 1},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"event": "step", "st'
    (tmp_path / "events" / "driver.jsonl").write_text(text)
    steps, windows = StepMarks(tmp_path).look()
    assert [step.step for step in steps] == [3] and [window.start for window in windows] == [3]


@pytest.mark.parametrize("version", [1, 2])
def test_a_kill_belongs_to_who_ended_with_it(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a group of a job, and not long after it; the limit is the job's."""
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    step = root / ("job_7/step_0" if version == 2 else "memory/job_7/step_0")
    step.mkdir(parents=True)
    limit = "memory.max" if version == 2 else "memory.limit_in_bytes"
    (step / limit).write_text("max\n" if version == 2 else "9223372036854771712\n")
    (step.parent / limit).write_text(f"{64 << 30}\n")
    for pid in (10, 11, 12):
        (proc / str(pid)).mkdir(parents=True)
        line = "0::/job_7/step_0\n" if version == 2 else "4:memory:/job_7/step_0\n1:cpu:/\n0::/\n"
        (proc / str(pid) / "cgroup").write_text(line)

    def counted(kills: int) -> None:
        text = f"low 0\noom_kill {kills}\n" if version == 2 else f"oom_kill_disable 0\noom_kill {kills}\n"
        (step / ("memory.events" if version == 2 else "memory.oom_control")).write_text(text)

    counted(3)
    kills = MemoryKills(str(proc), str(root))
    assert kills.look({10, 11, 12}) == []
    assert kills.look({11, 12}) == [], "killed before, or for another reason"
    counted(4)
    if version == 1:  # as the kernel shows it from then on
        (proc / "11/cgroup").write_text("4:memory:/\n1:cpu:/\n0::/\n")
        (root / "memory/memory.oom_control").write_text("oom_kill_disable 0\noom_kill 0\n")
    assert kills.look({11, 12}) == [], "it takes its time to end"
    assert kills.look({12}) == [(11, 64 << 30, "/job_7/step_0")]
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now + 60)
    assert kills.look(set()) == []


SLOW_TO_END = """
import os, sys
kept = bytearray(os.urandom(1 << 20)) * 256  # all of it is freed as it ends
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
print(flush=True)
sys.stdin.readline()
taken = [bytearray(os.urandom(1 << 20)) for _ in range(4096)]
"""


def test_a_kill_is_found_however_often_one_looks() -> None:
    """Also while the process ends, when the kernel already shows it elsewhere."""
    need("memory_cgroup")
    with memory.limited(32 << 20) as group:
        argv = [sys.executable, "-c", SLOW_TO_END, str(group / "cgroup.procs")]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin and process.stdout and process.stdout.readline()
            kills, looks = MemoryKills(), 0
            assert kills.look({process.pid}) == []
            process.stdin.write(b"\n")
            process.stdin.flush()
            while processes.state_of(process.pid) not in ("", "Z"):
                assert kills.look({process.pid}) == []
                looks += 1
            assert [found[:2] for found in kills.look(set())] == [(process.pid, 32 << 20)], looks


def test_a_rank_that_has_not_looked_closely_yet_may_be_in_a_collective(tmp_path: Path) -> None:
    """It looks late on a busy machine: so long as it tells anything, it is not said to be elsewhere."""
    (tmp_path / "marks").mkdir()
    path, begin = tmp_path / f"marks/{os.getpid()}.groups", 10**18

    def still_s(told_s: float, now_s: float, **more: Any) -> float:
        told = GroupState(begin + int(told_s * 1e9), begin, "w", 0, **more)
        path.write_text(json.dumps(asdict(told)))
        [state] = RankStates(tmp_path).look(begin + int(now_s * 1e9), ())
        return state.still_s

    assert still_s(9.9, 16.0) == 9.9
    assert still_s(14.9, 16.0) == 16.0, "it has looked, and is in none"
    assert still_s(14.9, 16.0, group="default_pg", sequence=4) == 16.0
    assert still_s(9.9, 32.0) == 32.0, "it holds the interpreter, or is stopped"


SERVER = """
import subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"vllm:num_requests_running 3\\nvllm:generation_tokens_total 50\\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

engine = subprocess.Popen(["sleep", "600"])
server = HTTPServer(("127.0.0.1", 0), Handler)
print(engine.pid, server.server_port, flush=True)
server.serve_forever()
"""


def test_a_stopped_process_of_a_server_is_seen_and_a_server_that_answers_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlprof_ops.recorder.samples.engines.IDLE_S", 0.2)
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert server.stdout is not None
        engine, port = map(int, server.stdout.readline().split())
        (tmp_path / "marks").mkdir()
        (tmp_path / f"marks/{server.pid}.engine").write_text(f"http://127.0.0.1:{port}/metrics\n")
        engines = Engines(urls="", node_dir=tmp_path)
        monkeypatch.setattr("rlprof_ops.recorder.samples.engines._TIMEOUT_S", 60.0)
        [first] = engines.look()
        assert (first.running, first.pid, first.idle_s, first.stopped) == (3, server.pid, 0.0, 0)
        os.kill(engine, signal.SIGSTOP)
        time.sleep(0.5)
        [held] = engines.look()
        assert (held.stopped, held.silent) == (engine, 0) and held.idle_s >= 0.5
        os.kill(server.pid, signal.SIGSTOP)
        monkeypatch.setattr("rlprof_ops.recorder.samples.engines._TIMEOUT_S", 0.5)
        time.sleep(0.5)
        [silent] = engines.look()
        assert (silent.running, silent.silent) == (3, 1) and silent.idle_s > held.idle_s
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    assert engines.look() == []


def test_a_stopped_process_of_a_server_that_tells_no_figures_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As verl runs vLLM by default."""
    monkeypatch.setattr("rlprof_ops.recorder.samples.engines.IDLE_S", 0.2)
    program = SERVER.replace("vllm:", "python_gc:")
    server = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert server.stdout is not None
        engine, port = map(int, server.stdout.readline().split())
        (tmp_path / "marks").mkdir()
        (tmp_path / f"marks/{server.pid}.engine").write_text(f"http://127.0.0.1:{port}/metrics\n")
        engines = Engines(urls="", node_dir=tmp_path)
        assert engines.look() == []
        os.kill(engine, signal.SIGSTOP)
        time.sleep(0.3)
        [first] = engines.look()
        time.sleep(0.3)
        [held] = engines.look()
        assert (held.stopped, held.pid, held.running) == (engine, server.pid, 0)
        assert held.idle_s >= first.idle_s + 0.29  # both are rounded
        os.kill(engine, signal.SIGCONT)
        time.sleep(0.3)
        assert engines.look() == []
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


ANSWERS = {
    "another protocol": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "cut within a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\nvllm:",
    "endless": b"HTTP/1.1 200 OK\r\nContent-Length: 34\r\n\r\nvllm:num_requests_running{} +Inf   ",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_answers_otherwise_than_an_engine_is_left_out(tmp_path: Path, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            link, _ = server.accept()
            with link:
                link.recv(4096)
                link.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        urls = f"http://127.0.0.1:{server.getsockname()[1]}/metrics http://n1:80a0/metrics"
        assert Engines(str(tmp_path), urls).look() == []
        thread.join(10)
