"""The job's latest figures as OpenMetrics text, which Prometheus and its node exporter read.

Names and units follow prometheus.io/docs/practices/naming: base units, and the unit at the end of the name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rlprof_ops.recorder.samples.gpu import throttle_words

_MIB = 1 << 20
Sample = tuple[Mapping[str, str], float]


def text(summary: Mapping[str, Any]) -> str:
    """Of the recorder's summary."""
    job = str(summary["job"])
    lines: list[str] = []
    for name, kind, what, samples in (*_of_job(summary), *_of_nodes(summary["nodes"])):
        lines += _family(f"rlprof_{name}", kind, what, samples, {"job_id": job})
    return "\n".join([*lines, "# EOF"]) + "\n"


def _of_job(summary: Mapping[str, Any]) -> Iterable[tuple[str, str, str, list[Sample]]]:
    steps = summary["history"]["steps"]
    last = steps[-1] if steps else None
    yield "step", "gauge", "The step begun last.", [({}, summary["step"])]
    yield (
        "updated_timestamp_seconds",
        "gauge",
        "When the recorder has told this.",
        [({}, summary["t_ns"] / 1e9)],
    )
    median = summary["step_median_s"]
    yield (
        "step_median_seconds",
        "gauge",
        "Median length of the latest steps.",
        [({}, median)] if median else [],
    )
    yield (
        "step_duration_seconds",
        "gauge",
        "Length of the last step that has ended.",
        ([({}, last[2])] if last else []),
    )
    yield (
        "phase_duration_seconds",
        "gauge",
        "Its phases, without the phases inside them.",
        [({"phase": name}, seconds) for name, seconds in (last[3] if last else {}).items()],
    )
    kinds = Counter(finding["kind"] for finding in summary["findings"])
    yield (
        "findings",
        "counter",
        "What the recorder has found.",
        [({"kind": kind}, count) for kind, count in sorted(kinds.items())],
    )
    yield (
        "rank_slowdown_ratio",
        "gauge",
        "The slowest ranks' last step against their peers.",
        [
            ({"worker": row["worker"], "rank": str(row["rank"]), "node": row["node"]}, row["factor"])
            for row in summary["slowest"]
        ],
    )


def _of_nodes(nodes: Mapping[str, Any]) -> Iterable[tuple[str, str, str, list[Sample]]]:
    hosts = [({"node": name}, node["host"]) for name, node in nodes.items() if node["host"]]
    for name, what, key, unit in (
        ("host_cpu_ratio", "Share of the node's CPUs that is busy.", "cpu_permille", 1e-3),
        ("host_memory_used_bytes", "Memory that is not easily freed.", "memory_mib", _MIB),
        ("host_object_store_bytes", "What lies in /dev/shm.", "store_mib", _MIB),
    ):
        yield name, "gauge", what, [(labels, host[key] * unit) for labels, host in hosts]
    gpus = [
        ({"node": name, "gpu": str(gpu["gpu"])}, gpu) for name, node in nodes.items() for gpu in node["gpus"]
    ]
    for name, what, key, unit in (
        ("gpu_busy_ratio", "Utilisation by NVML.", "busy_percent", 1e-2),
        ("gpu_memory_used_bytes", "Memory in use.", "memory_mib", _MIB),
        ("gpu_power_watts", "Power drawn.", "power_w", 1),
        ("gpu_temperature_celsius", "Temperature.", "temperature_c", 1),
        ("gpu_sm_clock_hertz", "Clock of the SMs.", "sm_mhz", 1e6),
    ):
        yield name, "gauge", what, [(labels, gpu[key] * unit) for labels, gpu in gpus]
    yield (
        "gpu_throttled",
        "gauge",
        "1 where the hardware slows it: heat, power brake, a fault.",
        [(labels, float(bool(throttle_words(gpu["throttle"])))) for labels, gpu in gpus],
    )
    engines = [
        ({"node": name, "engine": engine["url"]}, engine)
        for name, node in nodes.items()
        for engine in node["engines"]
    ]
    for name, what, key, unit in (
        ("engine_requests_running", "Requests in a batch.", "running", 1),
        ("engine_requests_waiting", "Requests that wait.", "waiting", 1),
        ("engine_kv_cache_ratio", "KV cache in use.", "cache_permille", 1e-3),
        ("engine_tokens_per_second", "Tokens generated.", "tokens_s", 1),
    ):
        yield name, "gauge", what, [(labels, engine[key] * unit) for labels, engine in engines]


def _family(
    name: str, kind: str, what: str, samples: Iterable[Sample], common: Mapping[str, str]
) -> list[str]:
    """The lines of one metric; none where nothing tells it."""
    suffix = "_total" if kind == "counter" else ""
    lines = [f"{name}{suffix}{_labels({**common, **labels})} {value:.15g}" for labels, value in samples]
    return [f"# TYPE {name} {kind}", f"# HELP {name} {what}", *lines] if lines else []


def _labels(labels: Mapping[str, str]) -> str:
    told = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    return f"{{{told}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
