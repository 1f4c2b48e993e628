"""Steps and phases as OpenTelemetry spans: a trace a step, a span a phase, sent over OTLP/HTTP by the SDK.

Headers, certificates and time limits are the SDK's own: OTEL_EXPORTER_OTLP_HEADERS and its like.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlprof_ops.errors import UsageError
from rlprof_ops.operate.export.led_steps import RecordedStep
from rlprof_ops.version import __version__

_FLUSH_MS = 30_000


class OtlpSpans:
    """`endpoint` is the collector's base address; "" takes OTEL_EXPORTER_OTLP_ENDPOINT. Raises UsageError
    where there is no SDK.
    """

    def __init__(self, endpoint: str, job: str, exporter: Any = None) -> None:
        """`exporter`: another one of the SDK's, for instance one that keeps spans in memory."""
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise UsageError(
                f"--otlp needs the OpenTelemetry SDK ({error}): pip install 'rlprof-ops[export]'"
            ) from None
        if exporter is None:
            address = f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None
            exporter = OTLPSpanExporter(endpoint=address)
        resource = Resource.create({"service.name": "rlprof", "rlprof.job": job})
        self._provider: Any = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer: Any = self._provider.get_tracer("rlprof-ops", __version__)
        self._beneath: Any = trace.set_span_in_context

    def add(self, steps: Iterable[RecordedStep]) -> None:
        for step in steps:
            who = {"rlprof.worker": step.worker, "rlprof.rank": step.rank, "rlprof.step": step.step}
            root = self._tracer.start_span("step", attributes=who, start_time=step.begin_ns)
            for phase in step.phases:
                told = {**who, "rlprof.count": phase.count, "rlprof.own_s": phase.own_s}
                span = self._tracer.start_span(
                    phase.name, self._beneath(root), attributes=told, start_time=phase.begin_ns
                )
                span.end(phase.begin_ns + round(phase.seconds * 1e9))
            root.end(step.end_ns)
        self._provider.force_flush(_FLUSH_MS)

    def close(self) -> None:
        self._provider.shutdown()
