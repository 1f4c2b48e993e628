"""Steps, phases, requests and findings as OpenTelemetry spans: a trace a step, sent over OTLP/HTTP by the
SDK.

Requests have the attributes of the GenAI semantic conventions; for training there are none, so that steps
have our own.

Headers, certificates and time limits are the SDK's own: OTEL_EXPORTER_OTLP_HEADERS and its like.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from rlprof_ops.errors import UsageError
from rlprof_ops.host import foreign
from rlprof_ops.operate.export.held_spans import HeldSpans
from rlprof_ops.operate.export.led_steps import RecordedStep
from rlprof_ops.recorder.detect.anomaly import HANG
from rlprof_ops.recorder.head_recorder import FINDINGS, FOLDER, read_rows
from rlprof_ops.version import __version__

_TOLD = ("text", "step", "worker", "node", "phase")
_LENGTHS = ("still_s", "seconds")


class OtlpSpans:
    """`endpoint` is the collector's base address; "" takes OTEL_EXPORTER_OTLP_ENDPOINT. Raises UsageError
    where there is no SDK.
    """

    def __init__(self, endpoint: str, job: str, exporter: Any = None, run: Path | None = None) -> None:
        """`exporter`: another one of the SDK's, for instance one that keeps spans in memory. `run`: whose
        findings are sent too.
        """
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        except ImportError as error:
            raise UsageError(
                f"--otlp needs the OpenTelemetry SDK ({error}): pip install 'rlprof-ops[export]'"
            ) from None
        if exporter is None:
            address = f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None
            exporter = OTLPSpanExporter(endpoint=address)
        resource = Resource.create({"service.name": "rlprof", "rlprof.job": job})
        self._provider: Any = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._spans = HeldSpans(exporter)  # the SDK's own queue drops what could not be sent
        self._provider.add_span_processor(SimpleSpanProcessor(cast("Any", self._spans)))
        self._tracer: Any = self._provider.get_tracer("rlprof-ops", __version__)
        self._beneath: Any = trace.set_span_in_context
        self._steps: dict[int | None, Any] = {None: None}  # a span's context by its step
        self._error: Any = trace.Status(trace.StatusCode.ERROR)
        self._run, self._told = run, 0

    def add(self, steps: Iterable[RecordedStep]) -> None:
        for step in steps:
            who = {"rlprof.worker": step.worker, "rlprof.rank": step.rank, "rlprof.step": step.step}
            root = self._tracer.start_span("step", attributes=who, start_time=step.begin_ns)
            beneath = self._steps[step.step] = self._beneath(root)
            for phase in step.phases:
                told = {**who, "rlprof.count": phase.count, "rlprof.own_s": phase.own_s}
                self._span(
                    phase.name, beneath, told, phase.begin_ns, phase.begin_ns + round(phase.seconds * 1e9)
                )
            root.end(step.end_ns)
        self._add_findings()
        self._spans.send()

    def _add_findings(self) -> None:
        """Those of the recorder that have come since: a step that hangs has no span of its own. Each lasts as
        long as what it tells of has lasted until then.
        """
        if self._run is None:
            return
        rows = read_rows(self._run / FOLDER / FINDINGS, ("kind", "text", "t_ns"))
        for row in rows[self._told :]:
            t_ns, evidence = foreign.whole(row["t_ns"]) or 0, foreign.an_object(row.get("evidence"))
            lengths = [evidence[name] for name in _LENGTHS if isinstance(evidence.get(name), int | float)]
            told = {f"rlprof.{key}": row[key] for key in _TOLD if isinstance(row.get(key), str | int)}
            told["rlprof.ranks"] = [
                rank for rank in foreign.a_list(row.get("ranks")) if isinstance(rank, int)
            ]
            begin_ns = t_ns - round(lengths[0] * 1e9 if lengths else 0)
            span = self._tracer.start_span(str(row["kind"]), attributes=told, start_time=begin_ns)
            span.add_event("rlprof.finding", {"rlprof.text": str(row["text"])}, t_ns)
            if row["kind"] == HANG:
                span.set_status(self._error)
            span.end(t_ns)
        self._told = len(rows)

    def add_requests(self, run: Path) -> None:
        """Below the steps that were added, each below the one that had it generated."""
        from rlprof_ops.operate.export.engine_requests import requests_of

        for replica, step, row in requests_of(run):
            told = {
                "gen_ai.operation.name": "text_completion",
                "gen_ai.response.id": row.id,
                "gen_ai.response.finish_reasons": [row.reason],
                "gen_ai.usage.input_tokens": row.prompt_tokens,
                "gen_ai.usage.output_tokens": row.tokens,
                "rlprof.worker": replica.worker,
                "rlprof.rank": replica.rank,
            }
            if replica.engine:
                told["gen_ai.provider.name"] = replica.engine
            if row.first_token_ns is not None:
                told["gen_ai.response.time_to_first_chunk"] = (row.first_token_ns - row.arrival_ns) / 1e9
            if step is not None:
                told["rlprof.step"] = step
            self._span("text_completion", self._steps.get(step), told, row.arrival_ns, row.finished_ns)
        self._spans.send()

    def _span(self, name: str, beneath: Any, told: dict[str, Any], begin_ns: int, end_ns: int) -> None:
        self._tracer.start_span(name, beneath, attributes=told, start_time=begin_ns).end(end_ns)

    @property
    def lost(self) -> int:
        """Spans that the collector did not take; how many there are is known after `close`."""
        return self._spans.lost

    def close(self) -> None:
        self._provider.shutdown()
