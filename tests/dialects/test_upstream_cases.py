"""The trainers' own unit tests of profiling, one by one: NeMo RL's test_nsys.py on its gate and on ours, and
every test of RLinf with the test of ours that holds it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import upstream
from tests.dialects.test_acceptance import gates_of_nemo_rl

from rlprof_ops.request import RequestError, load_request
from rlprof_ops.window.gate import StepGate

TESTS = Path(__file__).parents[1]
REFUSED = "refused"

# NeMo RL's tests/unit/utils/test_nsys.py: patterns, range, the steps that are seen, those that are recorded.
NSYS: dict[str, tuple[str, str, list[int], list[int] | str]] = {
    "no_environment_variables_set": ("", "", [5], []),
    "only_worker_patterns_set_raises_assertion_error": ("worker*", "", [5], REFUSED),
    "only_step_range_set_raises_assertion_error": ("", "1:10", [5], REFUSED),
    "invalid_step_range_format_missing_colon": ("worker*", "1-10", [5], REFUSED),
    "invalid_step_range_format_non_integer_start": ("worker*", "abc:10", [5], REFUSED),
    "invalid_step_range_format_non_integer_stop": ("worker*", "1:xyz", [5], REFUSED),
    "start_step_greater_than_stop_step": ("worker*", "10:5", [7], REFUSED),
    "start_step_equal_to_stop_step": ("worker*", "5:5", [5], REFUSED),
    "start_step_less_than_one": ("worker*", "0:10", [5], REFUSED),
    "negative_start_step": ("worker*", "-5:10", [5], REFUSED),
    "start_profiling_in_range": ("worker*", "5:10", [5], [5]),
    "start_profiling_at_start_boundary": ("worker*", "3:8", [3], [3]),
    "continue_profiling_when_already_started": ("worker*", "5:10", [5, 6], [5, 6]),
    "stop_profiling_after_range": ("worker*", "5:10", [8, 9, 10], [8, 9]),
    "stop_profiling_at_stop_boundary": ("worker*", "3:8", [7, 8], [7]),
    "no_action_when_step_before_range": ("worker*", "5:10", [3], []),
    "no_action_when_step_after_range_and_not_started": ("worker*", "5:10", [15], []),
    "atexit_handler_calls_stop_profiling": ("worker*", "5:10", [5], [5]),
    "single_step_range": ("worker*", "5:6", [5, 6], [5]),
    "profiling_sequence_full_lifecycle": ("worker*", "3:7", [1, 2, 3, 4, 5, 6, 7, 8], [3, 4, 5, 6]),
    "large_step_numbers": ("worker*", "1000000:1000002", [1_000_000], [1_000_000]),
    "whitespace_in_environment_variables": (" worker* ", " 5:10 ", [5], [5]),
    "multiple_calls_to_same_step": ("worker*", "5:10", [5, 5], [5, 5]),
    "step_zero_handling": ("worker*", "1:5", [0], []),
    "negative_step_handling": ("worker*", "1:5", [-5], []),
}
# What the rest of that file checks, and where ours stands.
NSYS_ELSEWHERE = {
    "policy_without_profiling_methods_fails": "workers need no methods: the gate is in their process",
    "mock_policy_implements_protocol": "checks the test's own mock",
    "protocol_methods_can_be_called": "checks the test's own mock",
    "exception_in_start_profiling_propagates": "runtime/ranges/test_ranges.py::"
    "test_a_failing_profiler_is_not_noticed_by_training",
    "exception_in_stop_profiling_propagates": "runtime/ranges/test_ranges.py::"
    "test_a_failing_profiler_is_not_noticed_by_training",
}


def theirs(patterns: str, given: str, seen: list[int]) -> tuple[list[int] | str, list[str]]:
    """The steps that NeMo RL's own `maybe_gpu_profile_step` records, and its calls."""
    calls: list[str] = []
    env = {"NRL_NSYS_WORKER_PATTERNS": patterns, "NRL_NSYS_PROFILE_STEP_RANGE": given}
    try:
        return gates_of_nemo_rl(env, seen, calls), calls
    except (AssertionError, ValueError):
        return REFUSED, calls


def ours(patterns: str, given: str, seen: list[int]) -> tuple[list[int] | str, list[str]]:
    """The steps that our step gate records under the same variables, and its calls."""
    calls: list[str] = []
    named = {"NRL_NSYS_WORKER_PATTERNS": patterns, "NRL_NSYS_PROFILE_STEP_RANGE": given}
    try:
        request = load_request(env={name: value for name, value in named.items() if value})
    except RequestError:
        return REFUSED, calls
    windows = [window for spec in request.captures for window in spec.windows()]
    on = SimpleNamespace(now=False)

    def start(_: Any) -> None:
        calls.append("start")
        on.now = True

    def stop(*_: Any) -> None:
        calls.append("stop")
        on.now = False

    gate, recorded = StepGate(windows, start, stop), []
    for step in seen:
        gate.enter(step)
        if on.now:
            recorded.append(step)
        gate.leave(step)
    gate.close(partial=True)
    return recorded, calls


@pytest.mark.upstream
@pytest.mark.parametrize("name", NSYS)
def test_nemo_rls_gate_and_ours_record_the_same(name: str, need: Any) -> None:
    """One start; one stop, which ours makes when the last step ends or the process does."""
    need("upstream")
    patterns, given, seen, wanted = NSYS[name]
    (recorded, calls), (mine, my_calls) = theirs(patterns, given, seen), ours(patterns, given, seen)
    if name == "multiple_calls_to_same_step":  # a step is one for us: what comes again changes nothing
        mine = [seen[0]] * len(mine)
    assert recorded == mine == wanted
    if recorded == REFUSED:
        return
    assert my_calls == (["start", "stop"] if wanted else [])
    assert calls in (my_calls, my_calls[:1])  # at exit NeMo RL stops in a handler, which its tests call


@pytest.mark.upstream
def test_every_test_of_nemo_rls_file_has_its_row(need: Any) -> None:
    need("upstream")
    source = (upstream.tree("nemo_rl") / "tests/unit/utils/test_nsys.py").read_text()
    names = {node.name.removeprefix("test_") for node in ast.walk(ast.parse(source))
             if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}  # fmt: skip
    assert names == NSYS.keys() | NSYS_ELSEWHERE.keys() and len(names) == 30
    for where in NSYS_ELSEWHERE.values():
        is_there(where)


# RLinf a3816b596 and newer: every test of profiling in tests/unit_tests, with ours.
BLOCK = "trainers/test_rlinf_configuration.py::test_a_block_is_read_as_rlinf_reads_it"
ROCPROF = "backends/rocprof_sys/test_rocprof.py"
RANGES = "runtime/ranges/test_ranges.py"
TWICE = "runtime/test_steps.py::test_callbacks_may_come_twice_or_not_at_all"
RLINF = {
    "test_nvidia_profiling.py": {
        "start_sets_active_and_calls_cuda_profiler_start": TWICE,
        "stop_clears_active_and_calls_cuda_profiler_stop": TWICE,
        "double_start_is_idempotent": TWICE,
        "stop_without_start_is_noop": TWICE,
        "sync passes_through_when_inactive": f"{RANGES}::"
        "test_outside_windows_nothing_is_recorded_and_no_object_is_made",
        "sync emits_range_when_active": f"{RANGES}::test_ranges_nest_in_the_step",
        "ends_range_on_exception": f"{RANGES}::test_the_users_exception_comes_out_unchanged_and_once",
        "async passes_through_when_inactive": f"{RANGES}::"
        "test_outside_windows_nothing_is_recorded_and_no_object_is_made",
        "async emits_range_when_active": f"{RANGES}::test_methods_of_every_kind",
    },
    "test_embodied_runner_profiling.py": {  # newer than the archive
        "profile_window_only_touches_selected_worker_groups": "trainers/test_rlinf.py::"
        "test_rlinfs_own_block_becomes_sessions_of_the_job",
        "profile_stop_is_dispatched_to_all_groups_before_waiting": "windows close in each process by itself",
        "consecutive_profile_steps_form_one_contiguous_window": "dialects/test_rules_nemo_rl.py::"
        "test_windows_start_and_stop_as_its_tests_say",
    },
    "test_distributed_tracing.py": {
        "record_and_finalize": "RLinf's own tracer; our timeline is made of reports and events",
        "emit_forwards_events": "RLinf's own tracer; our timeline is made of reports and events",
        "disabled_is_noop": "RLinf's own tracer; our timeline is made of reports and events",
    },
    # The other tests of this file that have to do with profiling are the keys of BLOCKS.
    "test_cluster_config.py": {
        "rocprof_sys_modify_profiling_context_prepends_command": f"{ROCPROF}::"
        "test_the_workers_script_runs_with_the_workers_interpreter",
        "rocprof_sys_get_profiling_env_vars_derives_output_path": f"{ROCPROF}::"
        "test_the_workers_script_runs_with_the_workers_interpreter",
        "rocprof_sys_get_profiling_env_vars_user_env_wins": f"{ROCPROF}::test_what_the_user_sets_wins",
        "rocprof_sys_get_profiling_env_vars_skips_non_matching_group": "rayenv/test_plugin.py::"
        "test_who_is_not_selected_is_left_as_is",
    },
}


def is_there(where: str) -> None:
    file, sep, name = where.partition("::")
    if sep:
        text = (TESTS / file).read_text()
        assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{where} is gone; name the new one"


@pytest.mark.parametrize(("file", "name"), [(file, name) for file, rows in RLINF.items() for name in rows])
def test_each_test_of_rlinf_is_held_by_one_of_ours(file: str, name: str) -> None:
    is_there(RLINF[file][name])


def test_rlinfs_profiling_blocks_are_all_given_to_its_own_parser() -> None:
    from tests.trainers.test_rlinf_configuration import BLOCKS

    is_there(BLOCK)
    assert len(BLOCKS) == 28 and not BLOCKS.keys() & RLINF["test_cluster_config.py"].keys()
