"""RLinf, rule by rule: its two documents, the checks of its code, and what test_cluster_config.py checks
of profiling.
"""

from __future__ import annotations

from typing import Any

import pytest

from rlprof_ops.request import RequestError, request_from_dict
from rlprof_ops.trainers.rlinf.dialect import framework
from rlprof_ops.trainers.rlinf.rlinf_names import PRESETS, TORCH_DEFAULTS

DOC = "GPU Profiling document"
TORCH = "PyTorch Profiler document"
TEST = "test_cluster_config.py"
CODE = "code"


def read(text: str) -> Any:
    return framework("rlinf").import_(text, "test")


def profiling(**fields: Any) -> str:
    import json

    return json.dumps(
        {
            "cluster": {
                "profiling": {"backend": "nsight", "worker_groups": ["ActorGroup"], "steps": [3]} | fields
            }
        }
    )


READ = [
    (
        f"{DOC}: a list of groups",
        profiling(worker_groups=["ActorGroup", "RolloutGroup"]),
        {"workers": ("ActorGroup", "RolloutGroup")},
    ),
    (f"{CODE}: one name", profiling(worker_groups="EnvGroup"), {"workers": ("EnvGroup",)}),
    (f"{CODE}: whatever the case", profiling(worker_groups=["actorgroup"]), {"workers": ("ActorGroup",)}),
    (f"{CODE}: all (undocumented)", profiling(worker_groups="all"), {"workers": ("*",)}),
    (f"{DOC}: channels are groups of their own", profiling(worker_groups=["Actor"]), {"workers": ("Actor",)}),
    (f"{TEST}: steps parse; RLinf counts from 0", profiling(steps=[3]), {"steps": "4"}),
    (f"{DOC}: several steps", profiling(steps=[3, 10, 50]), {"steps": "4,11,51"}),
    (f"{DOC}: steps null is the whole lifetime", profiling(steps=None), {"steps": "1:"}),
    (f"{CODE}: steps [] match none", profiling(steps=[]), {"steps": ""}),
    (
        f"{DOC}: Hydra CLI",
        (
            "+cluster.profiling.backend=nsight +cluster.profiling.worker_groups=[ActorGroup]"
            " '+cluster.profiling.steps=[3]'"
        ),
        {"steps": "4"},
    ),
    (
        f"{DOC}: options",
        profiling(options={"t": "cuda,nvtx", "backtrace": "fp"}),
        {"options": {"t": "cuda,nvtx", "backtrace": "fp"}},
    ),
    (
        f"{CODE}: values to text, booleans in small letters",
        profiling(options={"osrt-threshold": 1000, "b": True}),
        {"options": {"osrt-threshold": "1000", "b": "true"}},
    ),
    (f"{TEST}: flags", profiling(flags=["python-backtrace"]), {"flags": ("python-backtrace",)}),
    (f"{CODE}: one flag", profiling(flags="python-backtrace"), {"flags": ("python-backtrace",)}),
    (
        f"{TEST}: stop-on-range-end is a capture range's end",
        profiling(options={"stop-on-range-end": True}),
        {"options": {}},
    ),
    (
        f"{DOC}: capture-range is decided by steps",
        profiling(options={"capture-range": "cudaProfilerApi", "capture-range-end": "stop"}),
        {"options": {}},
    ),
    (
        f"{DOC}: rocprof_sys args and env",
        profiling(backend="rocprof_sys", args={"T": "hip,hsa,rccl"}, env={"ROCPROFSYS_SAMPLING_FREQ": "100"}),
        {
            "backend": "rocprof_sys",
            "options": {"T": "hip,hsa,rccl"},
            "env": {"ROCPROFSYS_SAMPLING_FREQ": "100"},
        },
    ),
]


@pytest.mark.parametrize(("origin", "text", "expected"), READ)
def test_readings(origin: str, text: str, expected: dict[str, Any]) -> None:
    spec = read(text).request.captures[0]
    found = {name: str(spec.steps) if name == "steps" else getattr(spec, name) for name in expected}
    assert found == expected, origin


def test_switches() -> None:
    assert not read(profiling(enabled=False)).request, (
        f"{TEST}: enabled false parses, and nothing is profiled"
    )
    assert read(profiling(enabled=False)).request.captures, "the rest of the config can stay in place"
    assert (
        read(profiling(output_dir="/mnt/public/profiles/my_run")).request.output_dir
        == "/mnt/public/profiles/my_run"
    )
    assert read(profiling(worker_groups=None)).request.captures == (), f"{DOC}: null is no worker"
    assert read(profiling(worker_groups=[])).request.captures == ()


REFUSED = [
    (
        f"{TEST}: backend required",
        '{"cluster": {"profiling": {"worker_groups": []}}}',
        "backend must be specified; allowed are nsight or rocprof_sys",
    ),
    (
        f"{TEST}: unknown backend",
        profiling(backend="nsys"),
        "'nsys' is unknown; allowed are nsight or rocprof_sys",
    ),
    (f"{CODE}: must be a mapping", '{"cluster": {"profiling": [1]}}', "cluster.profiling must be a mapping"),
    (f"{CODE}: extra keys", profiling(worker_group="x"), "has no key 'worker_group' for nsight"),
    (f"{CODE}: env is not nsight's", profiling(env={"A": "1"}), "has no key 'env' for nsight"),
    (f"{CODE}: args are not nsight's", profiling(args={"A": "1"}), "has no key 'args' for nsight"),
    (f"{TEST}: options must be a mapping", profiling(options=["t"]), "options must be a mapping"),
    (
        f"{TEST}: both names of the range's end",
        profiling(options={"stop-on-range-end": "true", "capture-range-end": "stop"}),
        "both 'stop-on-range-end' and 'capture-range-end'",
    ),
    (
        f"{CODE}: stop-on-range-end needs a value",
        profiling(options={"stop-on-range-end": None}),
        "'stop-on-range-end' needs a value",
    ),
    (f"{CODE}: o and output", profiling(options={"o": "a", "output": "b"}), "both 'o' and 'output'"),
    (
        f"{TEST}: a name in flags and options",
        profiling(options={"x-y": "1"}, flags=["x-y"]),
        "both in options and in flags",
    ),
    (f"{CODE}: empty option names", profiling(options={"": "1"}), "option name '' is not a name"),
    (f"{CODE}: empty flags", profiling(flags=[""]), "flag '' is not a name"),
    (
        f"{CODE}: flags of another type",
        profiling(flags={"a": 1}),
        "flags must be a list of names or one name",
    ),
    (
        f"{CODE}: groups of another type",
        profiling(worker_groups=3),
        "worker_groups must be a list of names or one name",
    ),
    (
        f"{CODE}: steps of another type",
        profiling(steps="3:5"),
        "steps must be a list of whole numbers or null",
    ),
    (f"{TEST}: negative steps", profiling(steps=[-1]), "none is negative"),
    (
        f"{CODE}: steps are cast by int(); ours are whole numbers only",
        profiling(steps=["3"]),
        "steps must be a list of whole numbers",
    ),
    (
        f"{TEST}: rocprof args must be a mapping",
        profiling(backend="rocprof_sys", args=[1]),
        "args must be a mapping",
    ),
    (
        f"{TEST}: rocprof env must be a mapping",
        profiling(backend="rocprof_sys", env="A=1"),
        "env must be a mapping",
    ),
    (
        f"{CODE}: a typo under cluster is silently ignored; ours says so",
        '{"cluster": {"profilng": {"backend": "nsight"}}}',
        "has no key 'profilng'",
    ),
    (
        f"{CODE}: the removed cluster.nsight is silently ignored",
        '{"cluster": {"nsight": {}}}',
        "has no key 'nsight'",
    ),
    (
        f"{CODE}: the preset's options and another backend",
        (
            '{"defaults": ["profile/default@cluster.profiling"], "cluster": {"profiling": {"backend":'
            ' "rocprof_sys"}}}'
        ),
        "write the block without the preset",
    ),
]


@pytest.mark.parametrize(("origin", "text", "part"), REFUSED)
def test_refusals(origin: str, text: str, part: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(text)
    assert part in str(caught.value), origin


def test_the_preset() -> None:
    """test_cluster_config.py: the preset has sample=process-tree, cudabacktrace=all, flags []."""
    text = (
        "defaults:\n  - training_backend/fsdp@actor.fsdp_config\n  -"
        " profile/default@cluster.profiling\ncluster:\n  profiling:\n    steps: [3]\n"
    )
    spec = read(text).request.captures[0]
    assert spec.workers == ("ActorGroup", "RolloutGroup", "EnvGroup")
    assert (spec.options["sample"], spec.options["cudabacktrace"], spec.flags, str(spec.steps)) == (
        "process-tree",
        "all",
        (),
        "4",
    )
    assert spec.options["osrt-threshold"] == str(PRESETS["profile/default"]["options"]["osrt-threshold"])


def test_the_presets_groups_are_the_files_and_those_of_the_document_alone_are_named() -> None:
    """Its file has three groups, its document lists six."""
    preset = "defaults:\n  - profile/default@cluster.profiling\n"
    imported = read(preset)
    assert imported.request.captures[0].workers == ("ActorGroup", "RolloutGroup", "EnvGroup")
    [said] = [note for note in imported.notes if note.startswith("profile/default")]
    assert all(f" {channel}" in said for channel in ("Actor,", "Rollout,", "Env too")), said
    six = ["ActorGroup", "RolloutGroup", "EnvGroup", "Actor", "Rollout", "Env"]
    imported = read(preset + f"cluster:\n  profiling:\n    worker_groups: {six}\n")
    assert imported.request.captures[0].workers == tuple(six)
    assert not [note for note in imported.notes if note.startswith("profile/default")]


def test_the_documents_rocprof_block_is_read_as_it_stands_alone() -> None:
    block = (
        "backend: rocprof_sys\nenabled: true\nworker_groups: [ActorGroup, RolloutGroup, EnvGroup]\nargs:\n"
        "  T: hip           # trace HIP API calls\n"
    )
    [spec] = read(block).request.captures
    assert (spec.backend, spec.workers, spec.options) == (
        "rocprof_sys", ("ActorGroup", "RolloutGroup", "EnvGroup"), {"T": "hip"},
    )  # fmt: skip


def test_another_backend_is_chosen_by_an_override() -> None:
    """As the document has it, by the YAML or by Hydra; `test_refusals` has what the preset makes of it."""
    words = "cluster.profiling.backend={} cluster.profiling.worker_groups=[ActorGroup]"
    for backend in ("nsight", "rocprof_sys"):
        assert read(words.format(backend)).request.captures[0].backend == backend
        assert read(profiling(backend=backend)).request.captures[0].backend == backend


@pytest.mark.parametrize(
    ("backend", "field", "read_as"),
    [("nsight", "options", "options"), ("rocprof_sys", "args", "options"), ("rocprof_sys", "env", "env")],
)
def test_what_rlinf_computes_is_not_set_and_said(backend: str, field: str, read_as: str) -> None:
    values = {"A": "${runner.logger.log_path}/x", "B": r"as \${text}"}
    imported = read(profiling(backend=backend, **{field: values}))
    assert getattr(imported.request.captures[0], read_as) == {"B": "as ${text}"}
    assert any(f"cluster.profiling.{field}.A '${{runner." in note for note in imported.notes), imported.notes


TOKENS = [
    (f"{DOC}: single-character keys", {"t": "cuda,nvtx"}, (), ["-t", "cuda,nvtx"]),
    (f"{DOC}: multi-character keys", {"backtrace": "fp"}, (), ["--backtrace=fp"]),
    (f"{DOC}: flags", {}, ("python-backtrace",), ["--python-backtrace"]),
    (
        f"{CODE}: flags first, then options",
        {"t": "cuda", "sample": "none"},
        ("x",),
        ["-x", "-t", "cuda", "--sample=none"],
    ),
    (
        f"{DOC}: rocprof",
        {"T": "hip,hsa,rccl", "output-format": "json"},
        (),
        ["-T", "hip,hsa,rccl", "--output-format=json"],
    ),
    (f"{TEST}: none", {}, (), []),
]


@pytest.mark.parametrize(("origin", "options", "flags", "tokens"), TOKENS)
def test_rendering_rules_of_the_tools_arguments(
    origin: str, options: dict[str, str], flags: tuple[str, ...], tokens: list[str]
) -> None:
    from rlprof_ops.backends.nsight import nsys_options

    ours = [nsys_options.render_flag(flag) for flag in flags] + [
        t for name, value in options.items() for t in nsys_options.render_option(name, value)
    ]
    assert ours == tokens, f"{origin}: our own backend renders by the same rules"


def render(fmt: str = "yaml", **fields: Any) -> Any:
    return framework("rlinf").render(
        request_from_dict({"captures": [{"workers": "ActorGroup", "steps": "3:5,10"} | fields]}), fmt
    )


def test_every_range_of_several_steps_is_kept() -> None:
    """RLinf's own default is capture-range-end=stop, and then nsys ignores all ranges but the first."""
    assert "capture-range-end: 'repeat:3'" in render().text
    assert "capture-range" not in render(steps="3").text, "one step: RLinf's own default is right"
    assert "steps: [2, 3, 9]" in render().text


def test_whole_life_and_off() -> None:
    assert "steps: null" in render(steps="1:").text
    assert "steps: []" in render(steps=None).text


LOST = [
    ({"ranks": [0]}, "ranks; RLinf profiles every rank"),
    ({"each": "phase"}, "each: phase"),
    ({"env": {"A": "1"}}, "RLinf has it for rocprof_sys only"),
    ({"backend": "rocprof_sys", "flags": ["b"]}, "RLinf's args need a value"),
    ({"backend": "memory"}, "RLinf has no memory"),
    ({"steps": "3:"}, "the open range '3:' is cut to 10 steps"),
    ({"workers": "Actr*"}, "matches no worker of RLinf"),
    ({"backend": "rocprof_sys"}, "no worker starts"),
    ({"backend": "torch", "steps": "3:5"}, "begins with step 1 and has no gap"),
    ({"backend": "torch", "steps": "1:3", "workers": "RolloutGroup"}, "in the Megatron actor only"),
    ({"backend": "torch", "steps": "1:3", "options": {"max_mb": 1}}, "options max_mb"),
]


@pytest.mark.parametrize(("fields", "part"), LOST)
def test_says_what_is_lost(fields: dict[str, Any], part: str) -> None:
    assert any(part in loss for loss in render(**fields).losses)


NOTES = [
    (
        f"{CODE} 1.5: channels get no window",
        {"workers": "Actor"},
        "Actor: RLinf opens its windows in ActorGroup, RolloutGroup, EnvGroup only",
    ),
    (f"{CODE} 1.5: reasoning and other runners get none", {}, "only RLinf's embodied runners open windows"),
    (
        f"{CODE} 2.2.1 [ran]: documented, and refused",
        {"backend": "rocprof_sys", "options": {"T": "hip"}},
        "rocprof-sys-python has no option 'T'",
    ),
    (f"{CODE} 2.2.6: steps do not gate AMD", {"backend": "rocprof_sys"}, "rocprof_sys has no gate on steps"),
    (
        "own: a name with a slip is passed on, since names are free text",
        {"workers": "ActorGrup"},
        "(Did you mean 'ActorGroup', perhaps?)",
    ),
    (
        "own: groups that are not the embodied runner's",
        {"workers": "MyJudge"},
        "'MyJudge' is no group of RLinf's own examples and is written as it is",
    ),
]


@pytest.mark.parametrize(("origin", "fields", "part"), NOTES)
def test_says_what_to_know(origin: str, fields: dict[str, Any], part: str) -> None:
    assert any(part in note for note in render(**fields).notes), origin


def megatron(**fields: Any) -> str:
    import json

    return json.dumps({"actor": {"megatron": {"use_profiler": True, "profiler": TORCH_DEFAULTS | fields}}})


def test_the_torch_document_is_complete() -> None:
    """Its thirteen parameters, with its values; RLinf refuses a configuration that lacks one."""
    rendered = framework("rlinf").render(
        request_from_dict({"captures": [{"backend": "torch", "workers": "ActorGroup", "steps": 1}]}), "yaml"
    )
    for name in ("output_dir", "activities", "record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules", "export_tensorboard",
                 "export_chrome_trace", "chrome_filename_prefix", "schedule_warmup", "schedule_active", "schedule_repeat"):  # fmt: skip
        assert f"      {name}: " in rendered.text
    assert "use_profiler: true" in rendered.text and "schedule_wait" not in rendered.text


TORCH_READ = [
    (TORCH, {}, {"steps": "1", "options": {}, "workers": ("ActorGroup",), "backend": "torch"}),
    (f"{TORCH}: schedule_repeat cycles", {"schedule_repeat": 4}, {"steps": "1:5"}),
    (
        f"{TORCH}: switches",
        {"with_stack": True, "with_modules": False},
        {"options": {"with_stack": "true", "with_modules": "false"}},
    ),
    (f"{TORCH}: activities", {"activities": ["cpu"]}, {"options": {"activities": "cpu"}}),
]


@pytest.mark.parametrize(("origin", "fields", "expected"), TORCH_READ)
def test_torch_readings(origin: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    spec = read(megatron(**fields)).request.captures[0]
    assert {
        name: str(spec.steps) if name == "steps" else getattr(spec, name) for name in expected
    } == expected, origin


def test_the_documents_place_is_read_too() -> None:
    import json

    text = json.dumps({"megatron": {"use_profiler": True, "profiler": TORCH_DEFAULTS}})
    assert read(text).request.captures[0].backend == "torch"
    assert read(text.replace("true", "false", 1)).request.captures == ()


TORCH_REFUSED = [
    (f"{CODE}: unknown parameters", {"with_stak": True}, "Did you mean 'with_stack'?"),
    (f"{CODE}: unknown activity", {"activities": ["gpu"]}, "allowed are cpu and cuda"),
    (f"{CODE}: warmup at least 0", {"schedule_warmup": -1}, "schedule_warmup must be a whole number from 0"),
    (f"{CODE}: active above 0", {"schedule_active": 0}, "schedule_active must be a whole number from 1"),
    ("own", {"with_stack": "yes"}, "with_stack must be true or false"),
]


@pytest.mark.parametrize(("origin", "fields", "part"), TORCH_REFUSED)
def test_torch_refusals(origin: str, fields: dict[str, Any], part: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(megatron(**fields))
    assert part in str(caught.value), origin


def test_missing_torch_parameters_are_named() -> None:
    """ValueError `Missing required profiler parameters` upstream, once the worker is built."""
    with pytest.raises(RequestError, match=r"activities, record_shapes, .* must be written"):
        read('{"megatron": {"use_profiler": true, "profiler": {"output_dir": "/x"}}}')


def test_profiling_that_is_null_is_off_and_no_misspelling() -> None:
    imported = framework("rlinf").import_("cluster: {num_nodes: 1, profiling: null}", "test")
    assert not imported.request and "nothing is profiled" in " ".join(imported.notes)
    with pytest.raises(RequestError) as error:
        framework("rlinf").import_("cluster: {profiling: [1]}", "test")
    assert "Did you mean" not in str(error.value)
