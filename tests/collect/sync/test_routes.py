"""Which files leave a node, and how."""

import pytest

from rlprof_ops.collect.sync.routes import Kind, kind_of, routes_of

ROUTES = {route.source: route for route in routes_of("n1", ("session_2026-01-01_1",))}
RAY_LOGS = "ray/session_2026-01-01_1/logs"


@pytest.mark.parametrize(
    ("source", "relative", "kind"),
    [
        ("inplace", "nsight/policy/rank0/policy_rank0_n1_7.nsys-rep", Kind.STABLE),
        ("inplace", "rocprof_sys/policy/rank0/policy_rank0_n1_7_perfetto-trace.proto", Kind.STABLE),
        ("inplace", "rocprof_sys/policy/rank0/policy_rank0_n1_7_metadata.json", None),
        ("inplace", "nsight/policy/rank0/.policy.nsys-rep", None),
        ("inplace", "nsight/policy/rank0/notes.txt", None),
        (RAY_LOGS, "rocprof_sys/worker_process_7metadata-7.json", None),
        (RAY_LOGS, "rocprof_sys/worker_process_7perfetto-trace-7.proto", Kind.STABLE),
        (RAY_LOGS, "metadata.json", Kind.GROWING),
        (RAY_LOGS, "raylet.out", Kind.GROWING),
        ("requests", "4711.jsonl", Kind.LINES),
        ("tmp", "nsys-report-1.qdstrm", Kind.STABLE),
        ("tmp", "of the trainer.pickle", None),
        ("tmp", "of the trainer.proto", None),
    ],
)
def test_how_a_file_travels(source, relative, kind):
    assert kind_of(ROUTES[source], relative) is kind


def test_reports_written_in_place_arrive_beside_the_others():
    assert ROUTES["inplace"].target == ROUTES["profiles"].target == "profiles"
