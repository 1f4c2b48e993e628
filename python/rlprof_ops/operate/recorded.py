"""What the flight recorder says of a job: the one summary that the head keeps, and how a person reads it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlprof_ops.collect.harvest.heard import heard_line
from rlprof_ops.collect.harvest.manifest_table import printable
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import foreign
from rlprof_ops.recorder.head_recorder import FOLDER, SUMMARY
from rlprof_ops.recorder.job_view import SCHEMA, JobSummary
from rlprof_ops.recorder.samples.gpu import throttle_words
from rlprof_ops.words import counted, duration, size

_MIB = 1 << 20
_BLOCKS = "▁▂▃▄▅▆▇█"
_MOST_BYTES = 64 << 20
_STALE_S = 30.0


@dataclass(frozen=True)
class RecordedSummary:
    """A job's summary as it was read; its age counts from `ended_ns` where a job that ended tells it."""

    data: dict[str, Any]
    has_ended: bool = False
    ended_ns: int | None = None

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - float((self.has_ended and self.ended_ns) or self.data["t_ns"]) / 1e9)

    @property
    def is_stale(self) -> bool:
        """Whether the recorder has stopped telling: the job has ended, or its storage does not answer."""
        return self.age_s > _STALE_S


def read_summary(run: Path) -> RecordedSummary:
    """The summary in a run folder. Raises RlprofError where there is none, and for another schema."""
    path = run / FOLDER / SUMMARY
    try:
        data = foreign.an_object(foreign.read(path, _MOST_BYTES))
        if data.get("schema") == SCHEMA:
            foreign.typed(data, JobSummary)
    except FileNotFoundError:
        raise RlprofError(
            f"{path} does not exist: the job has not begun, or it runs with RLPROF_RECORD=0"
        ) from None
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        raise RlprofError(f"{path} is damaged: {foreign.reason_of(error)}") from None
    if data.get("schema") != SCHEMA:
        raise RlprofError(f"{path} has schema {data.get('schema')!r}; this version reads {SCHEMA}")
    return RecordedSummary(
        data, ended(run), foreign.whole(foreign.read_object(run / "run.json").get("ended_ns"))
    )


def ended(run: Path) -> bool:
    """Whether the job has written down how it ended."""
    end = foreign.an_object(foreign.read_object(run / "run.json").get("end"))
    return foreign.text(end.get("cause")) not in ("", "running")


def sparkline(values: Iterable[float], width: int = 60) -> str:
    """The latest values as blocks from zero to the most, so that noise looks like noise."""
    found = list(values)[-width:]
    scale = (len(_BLOCKS) - 1) / (max(found, default=0.0) or 1.0)
    return "".join(_BLOCKS[round(max(0.0, value) * scale)] for value in found)


@dataclass(frozen=True)
class Table:
    """One table of `rlprof top`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: str = ""


def headline(recorded: RecordedSummary) -> list[str]:
    """The lines above the tables."""
    data = recorded.data
    seconds = [row[2] for row in data["history"]["steps"]]
    age = duration(recorded.age_s * 1e9)
    said = f"{age} old"
    if recorded.has_ended:
        said = f"ended {age} ago"
    elif recorded.is_stale:
        said = f"nothing told for {age}"
    lines = [f"job {data['job']}: step {data['step']}, {counted(len(data['nodes']), 'node')}, {said}"]
    if seconds:
        lines.append(
            f"step times {sparkline(seconds)} last {duration(seconds[-1] * 1e9)},"
            f" median {duration(data['step_median_s'] * 1e9)}"
        )
    return [printable(line) for line in (*lines, _heard(data))]


def _heard(data: dict[str, Any]) -> str:
    """Who tells the steps, and what is heard of the trainer."""
    rows = data["history"]["steps"]
    steps = (min(row[0] for row in rows), max(row[0] for row in rows)) if rows else None
    phases = dict.fromkeys(name for row in rows for name in row[3])
    roles = {role["worker"]: role["ranks"] for role in data["roles"]}
    not_seen = [foreign.text(each) for each in foreign.a_list(data.get("not_seen"))]
    return f"heard: {heard_line(foreign.text(data.get('by')), steps, phases, roles, not_seen)}"


def tables(recorded: RecordedSummary, most_nodes: int = 16) -> list[Table]:
    """What stands below: roles, nodes, slowest ranks, open windows, findings; those that are empty not."""
    data = recorded.data
    found = [
        _roles(data["roles"]),
        _nodes(data["nodes"], most_nodes),
        _engines(data["nodes"]),
        Table(
            "Slowest ranks",
            ("worker", "rank", "node", "times its peers"),
            tuple(
                (row["worker"], str(row["rank"]), row["node"], f"{row['factor']:.2f}")
                for row in data["slowest"][:5]
            ),
        ),
        Table(
            "Open windows",
            ("worker", "rank", "backend", "step", "asked by"),
            tuple(
                (row["worker"], str(row["rank"]), row["backend"], str(row["start"]), row["asked_by"])
                for row in data["windows"][:8]
            ),
        ),
        Table(
            "Found",
            ("when", "what"),
            tuple(
                (time.strftime("%H:%M:%S", time.localtime(row["t_ns"] / 1e9)), row["text"])
                for row in data["findings"][-10:]
            ),
            f"{len(data['findings'])} in all" if len(data["findings"]) > 10 else "",
        ),
    ]
    return [_shown(table) for table in found if table.rows]


def _shown(table: Table) -> Table:
    """Columns that no row fills are left out: of nodes without GPUs, on a narrow terminal."""
    filled = [index for index in range(len(table.columns)) if any(row[index] for row in table.rows)]
    rows = tuple(tuple(printable(row[index]) for index in filled) for row in table.rows)
    return Table(table.title, tuple(table.columns[index] for index in filled), rows, table.more)


def _roles(roles: list[dict[str, Any]]) -> Table:
    rows = tuple(
        (
            role["worker"],
            str(role["ranks"]),
            str(role["step"]),
            ", ".join(f"{name} ({count})" for name, count in role["phases"].items()) or "ended",
            f"{duration(role['median_s'] * 1e9)}" if role["median_s"] else "",
        )
        for role in roles
    )
    return Table("Roles", ("worker", "ranks", "step", "now in", "median step"), rows)


def _nodes(nodes: dict[str, Any], most: int) -> Table:
    """The nodes that are worth a look first: silent ones, throttled ones, then those that do least."""
    rated = sorted(nodes.items(), key=lambda item: _interest(item[1]))
    rows = tuple(_node_row(name, node) for name, node in rated[:most])
    left = len(rated) - most
    columns = (
        "node",
        "CPU",
        "memory",
        "GPUs busy",
        "GPU memory",
        "power",
        "SM clock",
        "°C",
        "net",
        "disk",
        "",
    )
    return Table("Nodes", columns, rows, f"{left} more nodes" if left > 0 else "")


def _interest(node: dict[str, Any]) -> tuple[int, int, int]:
    gpus = node["gpus"]
    throttled = any(throttle_words(gpu["throttle"]) for gpu in gpus)
    busy = min((gpu["busy_percent"] for gpu in gpus), default=100)
    return (0 if not node["t_ns"] else 1, 0 if throttled else 1, busy)


def _node_row(name: str, node: dict[str, Any]) -> tuple[str, ...]:
    host, gpus = node["host"], node["gpus"]
    if host is None:
        return (name, *[""] * 9, "has not told anything")
    words = ", ".join(sorted({throttle_words(gpu["throttle"]) for gpu in gpus} - {""}))
    memory = f"{size(host['memory_mib'] * _MIB)} of {size(host['memory_total_mib'] * _MIB)}"
    net = f"{size((host['received_kib_s'] + host['sent_kib_s']) * 1024)}/s"
    disk = f"{size((host['read_kib_s'] + host['written_kib_s']) * 1024)}/s"
    of_gpus = ("", "", "", "", "")
    if gpus:
        used, total = (sum(gpu[key] for gpu in gpus) * _MIB for key in ("memory_mib", "memory_total_mib"))
        of_gpus = (
            _range(gpu["busy_percent"] for gpu in gpus) + " %",
            f"{size(used)} of {size(total)}",
            f"{sum(gpu['power_w'] for gpu in gpus)} W",
            _range(gpu["sm_mhz"] for gpu in gpus) + " MHz",
            _range(gpu["temperature_c"] for gpu in gpus),
        )
    return (name, f"{host['cpu_permille'] / 10:.0f} %", memory, *of_gpus, net, disk, words)


def _range(values: Iterable[int]) -> str:
    found = list(values)
    low, high = min(found), max(found)
    return f"{low}" if low == high else f"{low}-{high}"


def _engines(nodes: dict[str, Any]) -> Table:
    rows = tuple(
        (
            f"{name} {engine['url']}",
            str(engine["running"]),
            str(engine["waiting"]),
            f"{engine['cache_permille'] / 10:.0f} %",
            str(engine["preemptions"]),
            f"{engine['tokens_s']:.0f}",
        )
        for name, node in nodes.items()
        for engine in node["engines"]
    )
    columns = ("engine", "running", "waiting", "KV cache", "preemptions", "tokens/s")
    return Table("Engines", columns, rows[:8], f"{len(rows) - 8} more" if len(rows) > 8 else "")
