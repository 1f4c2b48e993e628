"""`rlprof export`: each format read again by the tool it is for, not by us."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from rlprof_ops.commands.export import command
from rlprof_ops.errors import RlprofError
from rlprof_ops.operate.export import openmetrics
from rlprof_ops.operate.export.endpoint import MetricsServer
from rlprof_ops.operate.export.export_run import export
from rlprof_ops.operate.export.held_spans import HeldSpans
from rlprof_ops.operate.export.led_steps import NewSteps, RecordedStep
from rlprof_ops.operate.export.otlp import OtlpSpans
from rlprof_ops.recorder import record_file
from rlprof_ops.recorder.detect.anomaly import Anomaly
from rlprof_ops.recorder.job_view import JobView
from rlprof_ops.recorder.news import News
from rlprof_ops.recorder.record_file import RecordFile
from rlprof_ops.recorder.rows import NAME, STEP, Names, pack, process_name
from rlprof_ops.recorder.samples.engines import EngineSample
from rlprof_ops.recorder.samples.gpu import GpuSample
from rlprof_ops.recorder.samples.host_samples import HostSample
from rlprof_ops.recorder.samples.step_marks import ToldStep
from tests.analyze.whole_run.dealt_requests import uneven
from tests.recorder.recorded import write_record
from tests.recorder.simulated import BEGIN_NS, healthy

HOSTILE = 'no"de\\1\n'


@pytest.fixture
def told() -> list[list[ToldStep]]:
    return list(healthy(1, 30, ranks=2))


@pytest.fixture
def run(tmp_path: Path, told: list[list[ToldStep]]) -> Path:
    write_record(tmp_path / "4711-logs", "n1", told)
    return tmp_path / "4711-logs"


def summary(told: list[list[ToldStep]], node: str = HOSTILE) -> dict[str, Any]:
    view = JobView("4711", [node])
    host = HostSample(250, 1024, 4096, 1, 2, 3, 4, 5)
    gpu = GpuSample(3, 90, 60, 500, 1900, 70_000, 80_000, 0x40, 0, 0)
    engine = EngineSample("http://127.0.0.1:8000/metrics", 7, 2, 500, 0, 1234.5, 1.0)
    for rows in told:
        view.take(News(node, BEGIN_NS, host, (gpu,), (engine,), (), tuple(rows), (), {}))
    view.findings.append(Anomaly("throttle", "GPU 3 is hot", "x", BEGIN_NS))
    return view.summary()


def test_openmetrics_by_prometheus_own_parser(told: list[list[ToldStep]]) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    text = openmetrics.text(summary(told))
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    found = {name: [(s.labels, s.value) for s in family.samples] for name, family in families.items()}
    last = told[-1][0]
    assert found["rlprof_step_duration_seconds"] == [({"job_id": "4711"}, pytest.approx(last.seconds, 1e-4))]
    phases = {labels["phase"]: value for labels, value in found["rlprof_phase_duration_seconds"]}
    assert phases == {name: pytest.approx(phase.own_s, 1e-3) for name, phase in last.phases.items()}
    gpu = {"job_id": "4711", "node": HOSTILE, "gpu": "3"}
    assert found["rlprof_gpu_busy_ratio"] == [(gpu, 0.9)] and found["rlprof_gpu_throttled"] == [(gpu, 1.0)]
    assert found["rlprof_findings"] == [({"job_id": "4711", "kind": "throttle"}, 1.0)]
    assert [value for _, value in found["rlprof_engine_tokens_per_second"]] == [1234.5]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_openmetrics_by_a_port(run: Path, told: list[list[ToldStep]], address: str) -> None:
    """As Prometheus asks for it; only who has the address gets it, and it ends with the job."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    exposition = pytest.importorskip("prometheus_client.openmetrics.exposition")
    arguments = ["--openmetrics-port", "0", "--openmetrics-address", address, "--every", "0.5"]
    command_line = [sys.executable, "-m", "rlprof_ops", "export", str(run), *arguments]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            url = urlsplit(serving.stdout.readline().strip())
            assert url.hostname == address and url.port

            def get(path: str, **headers: str) -> tuple[int, str, str]:
                connection = http.client.HTTPConnection(address, url.port, timeout=30)
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.headers["Content-Type"], answer.read().decode()

            status, _, said = get(url.path)
            assert status == 503 and "summary.json does not exist" in said
            (run / "recorder").mkdir()
            (run / "recorder" / "summary.json").write_text(json.dumps(summary(told)))
            status, kind, text = get(url.path)
            assert (status, kind) == (200, exposition.CONTENT_TYPE_LATEST)
            families = {family.name: family for family in parser.text_string_to_metric_families(text)}
            assert families["rlprof_step"].samples[0].value == 30
            assert get("/metrics")[0] == get(f"{url.path}/")[0] == 404
            assert get(url.path, Host="evil.example")[0] == 404
            (run / "run.json").write_text(json.dumps({"job": "4711", "end": {"cause": "driver-exit"}}))
            assert serving.wait(60) == 0
        finally:
            serving.kill()


def test_openmetrics_for_whoever_reaches_the_port(run: Path, told: list[list[ToldStep]]) -> None:
    (run / "recorder").mkdir()
    (run / "recorder" / "summary.json").write_text(json.dumps(summary(told)))
    with MetricsServer(run, 0, "0.0.0.0", token="") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", "/metrics", headers={"Host": "login1"})
        assert connection.getresponse().status == 200


def test_openmetrics_before_the_first_step() -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    text = openmetrics.text(JobView("1", ["n1"]).summary())
    assert [f.name for f in parser.text_string_to_metric_families(text)][:1] == ["rlprof_step"]


def test_tensorboard_by_its_own_reader(run: Path, told: list[list[ToldStep]], tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = CliRunner().invoke(command, [str(run), "--tensorboard", str(tmp_path / "tb")])
    assert done.exit_code == 0 and "30 steps exported" in done.output, done.output
    events = reading.EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    drivers = [rows[0] for rows in told]
    scalars = events.Scalars("rlprof/step_s")
    assert [event.step for event in scalars] == [row.step for row in drivers]
    assert [event.value for event in scalars] == pytest.approx([row.seconds for row in drivers], rel=1e-3)
    assert scalars[0].wall_time == pytest.approx(drivers[0].begin_ns / 1e9 + drivers[0].seconds, abs=0.01)
    trained = [event.value for event in events.Scalars("rlprof/phase/train_s")]
    assert trained == pytest.approx([row.phases["train"].own_s for row in drivers], rel=1e-3)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
def test_a_step_whose_length_is_no_number_is_not_exported(
    told: list[list[ToldStep]], tmp_path: Path, seconds: float
) -> None:
    told[4][0] = replace(told[4][0], seconds=seconds)
    write_record(tmp_path / "4711-logs", "n1", told)
    found = NewSteps(tmp_path / "4711-logs").new(last=True)
    assert [step.step for step in found] == [step for step in range(1, 31) if step != 5]
    assert all(step.end_ns > step.begin_ns for step in found)


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """An OTLP receiver: what it gets is parsed by OpenTelemetry's own protocol."""
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            got.append(service.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()


def spans_of(requests: list[Any]) -> list[Any]:
    """All spans that a collector was sent."""
    return [
        span
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def test_spans_by_a_collector(
    run: Path, told: list[list[ToldStep]], collector: tuple[str, list[Any]]
) -> None:
    url, got = collector
    done = CliRunner().invoke(command, [str(run), "--otlp", url])
    assert done.exit_code == 0, done.output
    spans = spans_of(got)
    resource = {each.key: each.value.string_value for each in got[0].resource_spans[0].resource.attributes}
    assert (resource["service.name"], resource["rlprof.job"]) == ("rlprof", "4711")
    roots = sorted((span for span in spans if not span.parent_span_id), key=lambda s: s.start_time_unix_nano)
    drivers = [rows[0] for rows in told]
    assert [span.start_time_unix_nano for span in roots] == [row.begin_ns for row in drivers]
    lengths = [(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in roots]
    assert lengths == pytest.approx([row.seconds for row in drivers], rel=1e-3)
    first = {span.name: span for span in spans if span.parent_span_id == roots[0].span_id}
    assert set(first) == set(drivers[0].phases) and len({span.trace_id for span in roots}) == 30
    train = drivers[0].phases["train"]
    begun = (first["train"].start_time_unix_nano - drivers[0].begin_ns) / 1e9
    assert begun == pytest.approx(train.begin_s, rel=1e-3)


def test_a_hang_is_a_span_with_an_error(
    run: Path, told: list[list[ToldStep]], collector: tuple[str, list[Any]]
) -> None:
    """The step in which it is never ends, and has none."""
    url, got = collector
    (run / "recorder").mkdir()
    said = "rank 1 (policy_worker, node n2, pid 7) is stopped (SIGSTOP): rank 0 has waited 31.0 s"
    hang = Anomaly("hang", said, "hang:1", 10**18, 31, "policy_worker", (1,), "n2", "", {"still_s": 31.0})
    slow = Anomaly("slow_step", "step 7 took 9 s", "slow_step:7", 10**18 - 10**11, 7)
    lines = [json.dumps(each.to_dict()) for each in (slow, hang)]
    (run / "recorder" / "findings.jsonl").write_text("\n".join(lines) + "\n")
    assert CliRunner().invoke(command, [str(run), "--otlp", url]).exit_code == 0
    first, last = (span for span in spans_of(got) if span.name in ("slow_step", "hang"))
    assert (first.name, first.status.code, last.name, last.status.code) == ("slow_step", 0, "hang", 2)
    assert (last.start_time_unix_nano, last.end_time_unix_nano) == (10**18 - 31 * 10**9, 10**18)
    [event] = last.events
    assert event.name == "rlprof.finding" and event.attributes[0].value.string_value == said
    attributes = {each.key: each.value for each in last.attributes}
    assert attributes["rlprof.step"].int_value == 31 and attributes["rlprof.node"].string_value == "n2"
    assert [each.int_value for each in attributes["rlprof.ranks"].array_value.values] == [1]


def test_steps_that_come_later_are_exported_once(run: Path, told: list[list[ToldStep]]) -> None:
    steps = NewSteps(run)
    assert [step.step for step in steps.new()] == list(range(1, 31)) and steps.new() == []
    later = [[row for row in rows if row.leads] for rows in healthy(1, 33, ranks=2)]
    for path in (run / "nodes" / "n1" / "record").iterdir():
        path.unlink()
    (run / "nodes" / "n1" / "record").rmdir()
    (run / "nodes" / "n1").rmdir()
    write_record(run, "n1", later)
    assert [step.step for step in steps.new()] == [31, 32, 33]


def tell(record: RecordFile, worker: str, leads: bool, steps: Iterable[int]) -> None:
    """A block for each step of a process."""
    for step in steps:
        names = Names.new()
        who = names.number(process_name(worker, 0, 7, leads))
        record.begin(10**18)
        row = pack(STEP, who, step, 10**18 + step * 10**9, 1.0)
        record.add([*((NAME, name) for name in names.fresh), (STEP, row)])
        record.seal()


def test_a_record_is_read_on_from_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "nodes" / "n1" / "record"
    folder.mkdir(parents=True)
    record, steps, blocks = RecordFile(folder), NewSteps(tmp_path), list[int]()
    sections = record_file._sections
    monkeypatch.setattr(record_file, "_sections", lambda body: blocks.append(1) or sections(body))
    tell(record, "driver", True, range(1, 41))
    assert len(steps.new()) == len(blocks) == 40
    tell(record, "driver", True, [41, 42])
    whole = (folder / "record.bin").read_bytes()
    (folder / "record.bin").write_bytes(whole[:-5])  # as it arrives
    assert ([step.step for step in steps.new()], len(blocks)) == ([41, 42], 41)  # the tail has it still
    (folder / "record.bin").write_bytes(whole)
    assert ([step.step for step in steps.new()], len(blocks)) == ([], 42)
    (folder / "record.bin").unlink()
    tell(RecordFile(folder), "driver", True, range(21, 71))  # another record
    assert ([step.step for step in steps.new()], len(blocks)) == (list(range(43, 71)), 92)


def test_a_driver_whose_first_step_comes_after_a_workers_is_followed(tmp_path: Path) -> None:
    """The driver's step holds the worker's, and may end a block later."""
    folder = tmp_path / "nodes" / "n1" / "record"
    folder.mkdir(parents=True)
    record, steps = RecordFile(folder), NewSteps(tmp_path)
    tell(record, "policy", False, [1])
    assert steps.new() == []
    tell(record, "driver", True, [1, 2])
    assert [step.step for step in steps.new()] == [1, 2]
    tell(record, "driver", True, [3])
    assert [step.step for step in steps.new()] == [3]


def test_a_node_that_leads_nothing_is_not_read_at_every_look(tmp_path: Path) -> None:
    folder = tmp_path / "nodes" / "n1" / "record"
    folder.mkdir(parents=True)
    record, steps = RecordFile(folder), NewSteps(tmp_path)
    tell(record, "policy", False, range(1, 21))
    assert steps.new() == []
    tell(record, "driver", True, [1])
    assert steps.new() == []  # it has grown by a twentieth
    assert [step.step for step in steps.new(last=True)] == [1]


def test_following_ends_with_the_job(run: Path, told: list[list[ToldStep]], tmp_path: Path) -> None:
    (run / "recorder").mkdir()
    (run / "recorder" / "summary.json").write_text(json.dumps(summary(told)))
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            (run / "run.json").write_text(json.dumps({"job": "4711", "end": {"cause": "driver-exit"}}))

    export(run, [], tmp_path / "job.prom", every_s=3.0, sleep=sleep)
    assert waited == [3.0, 3.0]
    assert (tmp_path / "job.prom").read_text().endswith("# EOF\n")


def test_following_a_job_that_was_killed_ends(run: Path, told: list[list[ToldStep]], tmp_path: Path) -> None:
    (run / "recorder").mkdir()
    (run / "recorder" / "summary.json").write_text(json.dumps(summary(told)))
    (run / "run.json").write_text(json.dumps({"job": "4711", "end": {"cause": "running"}}))
    now = [0.0]
    with pytest.raises(RlprofError, match=r"4711-logs: the recorder has told nothing for 600 s.*status 4711"):
        export(
            run,
            [],
            tmp_path / "job.prom",
            every_s=100.0,
            sleep=lambda seconds: now.append(now.pop() + seconds),
            clock=lambda: now[0],
        )
    assert now == [700.0] and (tmp_path / "job.prom").exists()


def test_a_textfile_without_a_recorder_is_an_error(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RlprofError, match=r"summary.json does not exist.*RLPROF_RECORD=0"):
        export(run, [], tmp_path / "job.prom")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--openmetrics-port", "0", "--openmetrics-address", "192.0.2.1"], "cannot listen on 192.0.2.1"),
        ([], "nothing to export to"),
        (["--otlp", "collector:4317"], "is no address"),
        (["--openmetrics", "/no/where/job.prom"], "there is no folder /no/where"),
    ],
)
def test_mistakes_are_said(run: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(Exception, match=said):
        CliRunner().invoke(command, [str(run), *arguments], catch_exceptions=False)


def test_no_span_of_a_long_run_is_dropped(tmp_path: Path, collector: tuple[str, list[Any]]) -> None:
    """The SDK's queue holds 2,048 spans, and drops what comes while it is full."""
    url, got = collector
    told = list(healthy(1, 900, ranks=1))
    write_record(tmp_path / "4711-logs", "n1", told)
    done = CliRunner().invoke(command, [str(tmp_path / "4711-logs"), "--otlp", url])
    assert done.exit_code == 0, done.output
    spans = [span.name for span in spans_of(got)]
    assert spans.count("step") == 900
    assert len(spans) == sum(1 + len(rows[0].phases) for rows in told) > 2_048


class Exporter:
    """One of the SDK's, of a collector that takes `answers`, then nothing."""

    def __init__(self, *answers: bool) -> None:
        self.answers, self.got, self.asked = list(answers), [], 0

    def export(self, spans: list[Any]) -> Any:
        results = pytest.importorskip("opentelemetry.sdk.trace.export").SpanExportResult
        self.asked += 1
        if not (self.answers and self.answers.pop(0)):
            return results.FAILURE
        self.got += spans
        return results.SUCCESS

    def shutdown(self) -> None:
        pass


def recorded(*numbers: int) -> list[RecordedStep]:
    return [RecordedStep("driver", 0, 1, True, n, 10**18 + n, 1.0, ()) for n in numbers]


def test_spans_that_were_not_taken_go_with_the_next_ones() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    exporter = Exporter(False, True, True)
    spans = OtlpSpans("", "1", exporter)
    spans.add(recorded(1, 2))
    assert exporter.got == []
    spans.add(recorded(3))
    spans.close()
    assert [span.attributes["rlprof.step"] for span in exporter.got] == [1, 2, 3] and spans.lost == 0


def test_spans_that_nobody_takes_are_counted_and_a_look_asks_once() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    exporter = Exporter()
    spans = OtlpSpans("", "1", exporter)
    spans.add(recorded(*range(2000)))
    assert exporter.asked == 2
    spans.close()
    assert spans.lost == 2000 and exporter.asked == 3


def test_a_request_that_is_refused_holds_up_no_other() -> None:
    exporter = Exporter(False, True, True)
    held = HeldSpans(exporter)
    held.export(range(600))
    held.send()
    held.shutdown()
    assert exporter.got == [*range(512, 600), *range(512)] and held.lost == 0


def test_spans_that_wait_are_bounded() -> None:
    held = HeldSpans(Exporter(False, True), most=100)
    held.export(range(90))
    held.send()
    held.export(range(90, 130))
    assert held.lost == 30
    held.send()
    held.shutdown()
    assert held.lost == 30


def test_a_collector_that_is_not_there_is_a_failure(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://user:hunter22@127.0.0.1:{taken.getsockname()[1]}"
        done = CliRunner(env={"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}).invoke(command, [str(run), "--otlp", url])
    assert done.exit_code == 1
    assert re.search(r"^\d+ spans not taken by http://[^h]*127.0.0.1:\d+$", done.output, re.MULTILINE)


def test_requests_name_their_engine(tmp_path: Path, collector: tuple[str, list[Any]]) -> None:
    url, got = collector
    path = uneven(tmp_path)
    first, _, rest = path.read_text().partition("\n")
    path.write_text(json.dumps({**json.loads(first), "engine": "sglang"}) + "\n" + rest)
    assert CliRunner().invoke(command, [str(tmp_path), "--otlp", url]).exit_code == 0
    named = [
        each.value.string_value
        for span in spans_of(got)
        for each in span.attributes
        if each.key == "gen_ai.provider.name"
    ]
    assert set(named) <= {"vllm", "sglang"} and named.count("sglang") == 3 * 20 + 1


def test_requests_are_spans_by_the_genai_conventions(
    tmp_path: Path, collector: tuple[str, list[Any]]
) -> None:
    known = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    url, got = collector
    uneven(tmp_path)
    done = CliRunner().invoke(command, [str(tmp_path), "--otlp", url])
    assert done.exit_code == 0, done.output
    spans = spans_of(got)
    steps = {span.span_id: span.attributes for span in spans if span.name == "step"}
    requests = [span for span in spans if span.name == "text_completion"]
    assert len(requests) == 3 * 40 + 2 and sum(not span.parent_span_id for span in requests) == 2
    late = [{each.key: each.value for each in span.attributes} for span in requests]
    [one] = [each for each in late if each["gen_ai.response.id"].string_value == "late-2"]
    assert one["gen_ai.usage.output_tokens"].int_value == 1000 and one["rlprof.step"].int_value == 2
    assert one["gen_ai.response.finish_reasons"].array_value.values[0].string_value == "length"
    of_late = next(
        span for span in requests if any(each.value.string_value == "late-2" for each in span.attributes)
    )
    parent = {each.key: each.value.int_value for each in steps[of_late.parent_span_id]}
    assert parent["rlprof.step"] == 2
    names = {getattr(known, name) for name in dir(known) if name.startswith("GEN_AI_")}
    assert {name for each in late for name in each if name.startswith("gen_ai.")} <= names


def test_tables_by_their_own_reader(run: Path, told: list[list[ToldStep]], tmp_path: Path) -> None:
    """Every row of every rank, as it was recorded."""
    parquet = pytest.importorskip("pyarrow.parquet")
    tables = tmp_path / "tables"
    for _ in range(2):  # what is ours is replaced
        done = CliRunner().invoke(command, [str(run), "--parquet", str(tables)])
        assert done.exit_code == 0 and "90 steps" in done.output, done.output
    steps = parquet.read_table(tables / "steps.parquet").to_pylist()
    assert [(row["worker"], row["rank"], row["leads"], row["step"], row["begin_ns"]) for row in steps] == [
        (row.worker, row.rank, row.leads, row.step, row.begin_ns) for rows in told for row in rows
    ]
    phases = parquet.read_table(tables / "phases.parquet").to_pylist()
    assert [(row["rank"], row["step"], row["phase"], row["count"]) for row in phases] == [
        (row.rank, row.step, name, phase.count) for rows in told for row in rows
        for name, phase in row.phases.items()
    ]  # fmt: skip
    first = next(iter(told[0][0].phases.values()))
    assert (phases[0]["seconds"], phases[0]["own_s"]) == pytest.approx((first.seconds, first.own_s), rel=1e-3)
    assert parquet.read_table(tables / "requests.parquet").num_rows == 0
    assert sorted(path.name for path in tables.iterdir()) == [
        "phases.parquet",
        "requests.parquet",
        "steps.parquet",
    ]


def test_tables_have_each_request_with_its_step(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    uneven(tmp_path / "run")
    done = CliRunner().invoke(command, [str(tmp_path / "run"), "--parquet", str(tmp_path / "tables")])
    assert done.exit_code == 0, done.output
    rows = parquet.read_table(tmp_path / "tables" / "requests.parquet").to_pylist()
    assert len(rows) == 3 * 40 + 2
    for row in rows:
        assert row["step"] == (
            None if row["id"] == "of an evaluation" else int(re.findall(r"\d", row["id"])[0])
        )
    [late] = [row for row in rows if row["id"] == "late-3"]
    assert (late["worker"], late["rank"], late["tokens"], late["reason"]) == ("rollout", 1, 1000, "length")


def test_a_table_of_somebody_else_stays(run: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    theirs = tmp_path / "steps.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), theirs)
    before = theirs.read_bytes()
    with pytest.raises(RlprofError, match=r"steps.parquet was not written by rlprof and stays"):
        CliRunner().invoke(command, [str(run), "--parquet", str(tmp_path)], catch_exceptions=False)
    assert theirs.read_bytes() == before
    assert not list(tmp_path.glob(".*.parquet*"))


def test_the_notebook_runs_on_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell by cell, as a person would; on a run with requests, and on one without."""
    nbformat, matplotlib = pytest.importorskip("nbformat"), pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    matplotlib.use("Agg")
    notebook = nbformat.read(Path(__file__).parents[2] / "docs" / "examples" / "run.ipynb", as_version=4)
    nbformat.validate(notebook)
    uneven(tmp_path / "uneven")
    write_record(tmp_path / "plain", "n1", list(healthy(1, 30, ranks=2)))
    seen = {}
    for name in ("uneven", "plain"):
        tables = tmp_path / f"{name} tables"
        assert CliRunner().invoke(command, [str(tmp_path / name), "--parquet", str(tables)]).exit_code == 0
        monkeypatch.setenv("TABLES", str(tables))
        seen[name] = names = {}
        for cell in notebook.cells:
            if cell.cell_type == "code":
                exec(compile(cell.source, cell.id, "exec"), names)
    # The last of 40 requests after 9.5 s; of the first 95 % the last after 3.8 s: see dealt_requests.
    assert list(seen["uneven"]["tail"]) == pytest.approx([0.6] * 3)
    assert len(seen["plain"]["by_phase"]) == 30 and seen["plain"]["tail"].empty
