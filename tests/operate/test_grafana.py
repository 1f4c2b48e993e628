"""The Grafana dashboard of the documentation asks only for what `rlprof export` prints.

    RLPROF_TESTS_PROMETHEUS=/usr/bin/prometheus .venv/bin/python -m pytest tests/operate/test_grafana.py

also asks a real Prometheus (2.42 and later) every expression.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.operate.export import openmetrics
from rlprof_ops.operate.export.endpoint import MetricsServer
from tests.operate.test_export import summary
from tests.recorder.simulated import healthy
from tests.waits import wait_until

FILE = Path(__file__).parents[2] / "docs" / "examples" / "grafana.json"
DASHBOARD = json.loads(FILE.read_text())
EXPRESSIONS = {
    target["expr"]: panel["title"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])
}
VARIABLES = [
    each["query"]["query"] for each in DASHBOARD["templating"]["list"] if isinstance(each["query"], dict)
]
PROMETHEUS = "RLPROF_TESTS_PROMETHEUS"


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """A job that has everything: phases, a slow rank, findings, GPUs, an engine."""
    found = summary(list(healthy(1, 30, ranks=2)), "n1")
    found["slowest"] = [{"worker": "policy", "rank": 3, "node": "n1", "factor": 1.4}]
    return found


@pytest.fixture(scope="module")
def printed(told: dict[str, Any]) -> dict[str, set[str]]:
    """The labels of every sample that the exporter prints."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    return {
        sample.name: set(sample.labels)
        for family in parser.text_string_to_metric_families(openmetrics.text(told))
        for sample in family.samples
    }


def asked(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric of an expression, with the labels that are matched or kept of it."""
    promql = pytest.importorskip("promql_parser")

    def walk(node: Any, kept: set[str]) -> Iterator[tuple[str, set[str]]]:
        if isinstance(node, promql.VectorSelector):
            yield node.name, kept | {matcher.name for matcher in node.matchers.matchers}
        elif isinstance(node, promql.AggregateExpr):
            yield from walk(node.expr, kept | set(node.modifier.labels if node.modifier else ()))
        elif isinstance(node, promql.BinaryExpr):
            yield from walk(node.lhs, kept)
            yield from walk(node.rhs, kept)
        elif isinstance(node, promql.Call):
            for argument in node.args:
                yield from walk(argument, kept)
        else:
            assert isinstance(node, (promql.NumberLiteral, promql.StringLiteral)), node

    yield from walk(promql.parse(expression), set())


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda each: each[:40])
def test_a_panel_asks_for_what_is_printed(expression: str, printed: dict[str, set[str]]) -> None:
    found = list(asked(expression))
    assert found
    for metric, labels in found:
        assert metric in printed, f"{EXPRESSIONS[expression]}: {metric} is not exported"
        assert labels <= printed[metric], f"{EXPRESSIONS[expression]}: {metric} has no {labels}"


def test_legends_and_variables_name_labels(printed: dict[str, set[str]]) -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert all(label in printed[metric] for metric, _ in asked(target["expr"])), panel["title"]
    for query in VARIABLES:
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        [(metric, labels)] = asked(selector)
        assert labels | {label} <= printed[metric], query


def test_everything_that_is_printed_has_a_panel(printed: dict[str, set[str]]) -> None:
    shown = {metric for expression in EXPRESSIONS for metric, _ in asked(expression)}
    assert shown == set(printed)


def test_grafana_knows_every_field() -> None:
    """Read and written by Grafana's own model of a dashboard, nothing is lost."""
    model = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    again = json.loads(encoder.JSONEncoder().encode(model.Dashboard.from_json(DASHBOARD)))

    def kept(ours: Any, theirs: Any, at: str) -> None:
        if isinstance(ours, dict):
            for key, value in ours.items():
                assert key in theirs, f"{at}/{key} is no field of Grafana's"
                kept(value, theirs[key], f"{at}/{key}")
        elif isinstance(ours, list):
            assert len(ours) == len(theirs), at
            for number, pair in enumerate(zip(ours, theirs, strict=True)):
                kept(*pair, f"{at}/{number}")
        else:
            assert ours == theirs, at

    kept(DASHBOARD, again, "")


def test_panels_stand_side_by_side() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for cell in ((x, y) for x in range(at["w"]) for y in range(at["h"])):
            place = at["x"] + cell[0], at["y"] + cell[1]
            assert taken.setdefault(place, panel["title"]) == panel["title"], place
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.by_hand(PROMETHEUS)
def test_a_real_prometheus_answers_every_panel(tmp_path: Path, told: dict[str, Any]) -> None:
    """It asks our port, and every expression of the dashboard has an answer there."""
    (tmp_path / "4711-logs" / "recorder").mkdir(parents=True)
    (tmp_path / "4711-logs" / "recorder" / "summary.json").write_text(json.dumps(told))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with MetricsServer(tmp_path / "4711-logs", 0, token="") as server:
        job = {
            "job_name": "rlprof",
            "scrape_interval": "1s",
            "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [job]}))
        arguments = [
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (
            (tmp_path / "log").open("wb") as log,
            subprocess.Popen([os.environ[PROMETHEUS], *arguments], cwd=tmp_path, stderr=log) as prometheus,
        ):
            try:

                def answer(expression: str) -> list[Any]:
                    query = urllib.parse.urlencode({"query": expression})
                    try:
                        with urllib.request.urlopen(
                            f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=30
                        ) as said:
                            return list(json.load(said)["data"]["result"])
                    except urllib.error.URLError:
                        return []

                wait_until(lambda: answer("rlprof_step"), 60)
                for expression, title in EXPRESSIONS.items():
                    asked_for = expression.replace("$job_id", "4711").replace("$node", ".*")
                    assert answer(asked_for), f"{title}: {asked_for}"
            finally:
                prometheus.terminate()
                prometheus.wait(30)
