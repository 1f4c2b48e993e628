"""What the trainers' own unit tests check, behaviour by behaviour, and the test of ours that holds it (or is
stricter).

Rows are (upstream test, behaviour, ours, difference). `ours` is `file::test`, below tests/. A row without a
test says why the behaviour has no place here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NSYS, GROUPS, UTILS, PATCH = (
    "NeMo RL test_nsys.py",
    "NeMo RL test_worker_groups.py",
    "NeMo RL test_worker_groups_utils.py",
    "NeMo RL test_nsight_patching.py",
)
HOOKS = "NeMo RL rollout/policy profiler tests (PR #3573)"
NVTX, MSTX, CRITIC = (
    "verl test_nvtx_profile.py",
    "verl test_special_mstx_profile.py",
    "verl test_critic_config_on_cpu.py",
)
NVIDIA, CLUSTER, TRACING = (
    "RLinf test_nvidia_profiling.py",
    "RLinf test_cluster_config.py",
    "RLinf test_distributed_tracing.py",
)
RULES, NEMO, VERL, RLINF = (
    "request/test_rules.py",
    "dialects/test_rules_nemo_rl.py",
    "dialects/test_rules_verl.py",
    "dialects/test_rules_rlinf.py",
)
GATE = f"{NEMO}::test_windows_start_and_stop_as_its_tests_say"

BEHAVIOURS = [
    (NSYS, "nothing set: no call", f"{RULES}::test_environment", ""),
    (
        NSYS,
        "only patterns, or only the range: an error",
        f"{RULES}::test_environment",
        "before the job, not in its first step",
    ),
    (NSYS, "1-10, abc:10, 1:xyz: not a range", f"{RULES}::test_steps", "with the fix, and before the job"),
    (NSYS, "10:5 and 5:5 are empty", f"{RULES}::test_steps", ""),
    (NSYS, "0:10 and -5:10 begin before 1", f"{RULES}::test_steps", ""),
    (NSYS, "start at start, once", GATE, ""),
    (NSYS, "no second start inside the range", GATE, ""),
    (
        NSYS,
        "stop at stop, which is exclusive",
        GATE,
        "the window closes when its last step ends, not when the next begins",
    ),
    (NSYS, "before and after the range nothing", GATE, ""),
    (NSYS, "a single step", GATE, ""),
    (NSYS, "full life cycle 1..8 with 3:7", GATE, ""),
    (NSYS, "step 1,000,000", GATE, ""),
    (NSYS, "whitespace in both variables", f"{RULES}::test_environment", ""),
    (
        NSYS,
        "an object without the methods: AttributeError",
        "",
        "workers need no methods: the step gate is inside the training process",
    ),
    (
        NSYS,
        "exceptions of start and stop propagate",
        "runtime/ranges/test_ranges.py::test_a_failing_profiler_is_not_noticed_by_training",
        "training goes on, and the capture is told as failed",
    ),
    (NSYS, "the same step twice: one start", GATE, ""),
    (NSYS, "step 0 and negative steps are inert", GATE, ""),
    (
        NSYS,
        "at exit the profiler is stopped",
        "backends/nsight/test_nsys_session.py::test_a_window_is_saved_when_training_ends_in_it",
        "also on SIGTERM, and with a real report",
    ),
    (
        GROUPS,
        "no variable or no match: nothing is injected",
        "rayenv/test_plugin.py::test_who_is_not_selected_is_left_as_is",
        "",
    ),
    (
        GROUPS,
        "wildcards, exact names, the first of several patterns, whitespace, empty items",
        f"{RULES}::test_patterns",
        "",
    ),
    (
        GROUPS,
        "the options t, s, o, stop-on-exit",
        "backends/test_backends.py::test_options_of_one_line_are_dealt_to_launch_and_start",
        "windows are opened by nsys start, so o and stop-on-exit are ours",
    ),
    (GROUPS, "extra options add and override; not JSON, a list: an error", f"{RULES}::test_environment", ""),
    (
        GROUPS,
        "the result can be unpacked into a runtime_env",
        "runtime/test_profiler.py::test_an_actor_is_named_for_the_plugin",
        "",
    ),
    (
        GROUPS,
        "with nsys a real actor starts",
        "rayenv/test_real_ray.py::test_two_actors_are_profiled_at_once",
        "and its reports are read",
    ),
    (
        UTILS,
        "deep merge of runtime_env, `_nsight` renamed to `nsight`",
        "",
        "our key in runtime_env is our own, nothing is merged",
    ),
    (
        PATCH,
        "variable unset: nothing is read or written",
        "rayenv/test_plugin.py::test_without_a_request_nothing_happens",
        "the installed Ray is patched on request only",
    ),
    (
        PATCH,
        "patched once, with the exact replacement",
        "scripts/test_patch_ray_nsight.py::test_first_run_patches_one_line_and_keeps_the_mode",
        "",
    ),
    (
        PATCH,
        "already patched: read only, said",
        "scripts/test_patch_ray_nsight.py::test_second_run_says_so_and_changes_nothing",
        "",
    ),
    (
        PATCH,
        "line absent: no write, a warning",
        "scripts/test_patch_ray_nsight.py::test_an_unknown_shape_is_refused",
        "an error with exit code 2",
    ),
    (
        PATCH,
        "no Ray, no file, no permission: silent",
        "scripts/test_patch_ray_nsight.py::test_a_read_only_file_is_refused_also_for_root",
        "each is named",
    ),
    (
        HOOKS,
        "wrong order of begin and finish fails loudly",
        "runtime/compat/test_hooks_and_examples.py::test_a_wrong_order_is_an_error_of_the_caller",
        "",
    ),
    (
        HOOKS,
        "an abort never masks the training error, and the next step goes on",
        "runtime/compat/test_hooks_and_examples.py::test_an_aborted_step_is_partial_and_the_next_goes_on",
        "",
    ),
    (
        HOOKS,
        "begin_rollout takes stepN/attemptM",
        "runtime/compat/test_hooks_and_examples.py::test_step_ids",
        "",
    ),
    (
        NVTX,
        "every role's settings convert with equal enable, all_ranks and ranks",
        f"{VERL}::test_every_role_keeps_its_own_settings",
        "",
    ),
    (NVTX, "configs are frozen", f"{VERL}::test_configs_are_frozen", ""),
    (
        NVTX,
        "all_ranks: this rank is on, this step is off until start",
        f"{VERL}::test_todays_readings",
        "and rank by rank in request/test_properties.py",
    ),
    (NVTX, "start and stop are one call each", GATE, ""),
    (
        NVTX,
        "annotate returns the result and opens one range",
        "runtime/ranges/test_ranges.py::test_an_annotated_function_behaves_as_before",
        "",
    ),
    (
        NVTX,
        "discrete start, stop and annotate (commented out upstream)",
        "runtime/test_steps.py::test_phases_are_windows_of_their_own",
        "tested here",
    ),
    (
        NVTX,
        "annotate runs a failing function a second time (untested upstream)",
        "runtime/ranges/test_ranges.py::test_the_users_exception_comes_out_unchanged_and_once",
        "it runs once",
    ),
    (
        MSTX,
        "disabled, not this rank, not this step: nothing",
        "runtime/ranges/test_ranges.py::test_outside_windows_nothing_is_recorded_and_no_object_is_made",
        "for NVTX; Ascend is not covered",
    ),
    (
        MSTX,
        "repeated start is idempotent",
        "runtime/test_steps.py::test_callbacks_may_come_twice_or_not_at_all",
        "",
    ),
    (
        MSTX,
        "two instances share the count",
        "runtime/test_steps.py::test_asking_twice_gives_the_same_profiler",
        "",
    ),
    (
        MSTX,
        "the default message is the function's name",
        "runtime/ranges/test_ranges.py::test_methods_of_every_kind",
        "",
    ),
    (
        CRITIC,
        "union and intersect of profiler configs",
        "",
        "used by no trainer; captures of several roles are grouped on import",
    ),
    (
        NVIDIA,
        "start once, double start is one call, stop without start is none",
        "runtime/test_steps.py::test_callbacks_may_come_twice_or_not_at_all",
        "",
    ),
    (
        NVIDIA,
        "a range is transparent when off, and has its label when on",
        "runtime/ranges/test_ranges.py::test_ranges_nest_in_the_step",
        "",
    ),
    (
        NVIDIA,
        "a range ends on an exception, also in a coroutine",
        "runtime/ranges/test_ranges.py::test_the_users_exception_comes_out_unchanged_and_once",
        "",
    ),
    (CLUSTER, "nsight, flags, steps, groups, enabled parse", f"{RLINF}::test_readings", ""),
    (
        CLUSTER,
        (
            "both range-end names, options and args of another type, duplicates, unknown and missing backend,"
            " negative steps are refused"
        ),
        f"{RLINF}::test_refusals",
        "",
    ),
    (CLUSTER, "the preset", f"{RLINF}::test_the_preset", ""),
    (
        CLUSTER,
        "steps inject capture-range and its end, explicit ones win",
        f"{RLINF}::test_every_range_of_several_steps_is_kept",
        "with several steps every range is kept",
    ),
    (CLUSTER, "should_profile_step: member, None is all, disabled is none", f"{RLINF}::test_switches", ""),
    (
        CLUSTER,
        "wrap is skipped for other groups and when disabled",
        "rayenv/test_plugin.py::test_who_is_not_selected_is_left_as_is",
        "",
    ),
    (
        CLUSTER,
        "rocprof tokens none, single, multi, mixed, `--` last",
        "backends/rocprof_sys/test_rocprof.py::test_options_are_rendered_as_the_front_end_takes_them",
        "",
    ),
    (
        CLUSTER,
        "the wrap ends with the interpreter",
        "backends/rocprof_sys/test_rocprof.py::test_the_workers_script_runs_with_the_workers_interpreter",
        "upstream's test locks in that the script never runs",
    ),
    (
        CLUSTER,
        "output folder and prefix; the user's env wins",
        "backends/rocprof_sys/test_rocprof.py::test_what_the_user_sets_wins",
        "",
    ),
    (
        TRACING,
        "JSONL of begin and end events, balanced",
        "",
        "RLinf's own tracer; our timeline is made from reports and events",
    ),
]


@pytest.mark.parametrize(("origin", "behaviour", "ours", "difference"), BEHAVIOURS)
def test_each_behaviour_is_held_by_a_test(origin: str, behaviour: str, ours: str, difference: str) -> None:
    if not ours:
        assert difference, f"{origin}: {behaviour}: say why there is no test"
        return
    file, _, name = ours.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE), (
        f"{origin}: {behaviour}: {ours} is gone; name the test that holds it now"
    )
