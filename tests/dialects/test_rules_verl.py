"""verl, rule by rule: both schemes, the readings that were run, the keys that do not exist, and its unit
tests' behaviours.
"""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from rlprof_ops.request import RequestError, request_from_dict
from rlprof_ops.trainers.trainer_file import UnknownWorld
from rlprof_ops.trainers.verl import dialect as verl
from rlprof_ops.trainers.verl.verl_names import ROLE_PATHS

MAIN = verl.framework("verl-0.8")
LEGACY_DIALECT = verl.framework("verl-legacy")
RST = "docs/perf/nsight_profiling.rst (June 2025)"
CODE = "code at b178a3cd5"
OFF = "global_profiler.tool=nsys 'global_profiler.steps=[1,2,5]' "
A = "actor_rollout_ref.actor.profiler"
NSYS = OFF + "actor_rollout_ref.actor.profiler.enable=True "


def read(text: str) -> list[tuple[str, str, Any, str, str]]:
    request = MAIN.import_(text, "test").request
    return [(c.backend, " ".join(c.workers), c.ranks, str(c.steps), c.each) for c in request.captures]


def read_legacy(text: str) -> list[tuple[str, Any, str, str]]:
    return [
        (" ".join(c.workers), c.ranks, str(c.steps), c.each)
        for c in LEGACY_DIALECT.import_(text, "test").request.captures
    ]


EXAMPLE = """
trainer:
    profile_steps: [1, 2, 5]  # Profile steps 1, 2, and 5
actor_rollout_ref:
    actor:
        profile_discrete: {0}
        profile_ranks: [0, 1]  # Only profile ranks 0 and 1 for actor
    rollout:
        profile_discrete: {0}
        profile_ranks: null    # Profile all ranks for rollout
    ref:
        profile_discrete: False  # Disable profiling for ref policy
critic:
    profile_discrete: {0}
    profile_ranks: [0]      # Only profile rank 0 for critic
"""
LEGACY = [
    (f"{RST}: null disables", "trainer:\n    profile_steps: null # disable profile\n", []),
    (
        f"{RST}: first example; null is no ranks, as its prose says",
        EXAMPLE.format("False"),
        [("actor", (0, 1), "1:3,5", "step"), ("critic", (0,), "1:3,5", "step")],
    ),
    (
        f"{RST}: second example; ref is not profiled, so its mode does not count",
        EXAMPLE.format("True"),
        [("actor", (0, 1), "1:3,5", "phase"), ("critic", (0,), "1:3,5", "phase")],
    ),
    (f"{RST}: [] is no ranks", "trainer.profile_steps=[3] actor_rollout_ref.actor.profile_ranks=[]", []),
    (
        f"{RST}: profile_ranks_all",
        "trainer.profile_steps=[3] actor_rollout_ref.actor.profile_ranks_all=True",
        [("actor", None, "3", "step")],
    ),
    (
        f"{RST}: lists hybrid_engine among the rank settings; it is none",
        (
            "trainer.profile_steps=[3] actor_rollout_ref.hybrid_engine=True"
            " actor_rollout_ref.actor.profile_ranks=[0]"
        ),
        [("actor", (0,), "3", "step")],
    ),
    (
        f"{RST}: names critic and rm below actor_rollout_ref",
        "trainer.profile_steps=[3] actor_rollout_ref.rm.profile_ranks=[0]",
        [("reward_model", (0,), "3", "step")],
    ),
]


@pytest.mark.parametrize(("origin", "text", "expected"), LEGACY)
def test_legacy_readings(origin: str, text: str, expected: Any) -> None:
    assert read_legacy(text) == expected, origin


def test_legacy_null_is_explained() -> None:
    notes = LEGACY_DIALECT.import_(EXAMPLE.format("False"), "test").notes
    assert any(
        "rollout.profile_ranks null is read as no ranks; one example of verl's document comments it as all"
        in n
        for n in notes
    )


ROLE = "actor_rollout_ref.actor.profiler."
TODAY = [
    (
        f"{CODE} 2.4 [run]: enable, ranks [] is rank 0 only",
        NSYS,
        [("nsight", "actor rollout", (0,), "1:3,5", "step")],
    ),
    (
        f"{CODE} 2.4 [run]: ranks [1,2]",
        NSYS + ROLE + "ranks=[1,2]",
        [("nsight", "actor rollout", (1, 2), "1:3,5", "step")],
    ),
    (
        f"{CODE} 2.4 [run]: all_ranks wins",
        NSYS + ROLE + "ranks=[3] " + ROLE + "all_ranks=True",
        [("nsight", "actor rollout", None, "1:3,5", "step")],
    ),
    (f"{CODE} 2.4 [run]: enable False wins over all_ranks", OFF + ROLE + "all_ranks=True", []),
    (f"{CODE} 2.2: rollout follows actor", NSYS, [("nsight", "actor rollout", (0,), "1:3,5", "step")]),
    (
        f"{CODE} 2.2: rollout on its own",
        NSYS + "actor_rollout_ref.rollout.profiler.enable=False",
        [("nsight", "actor", (0,), "1:3,5", "step")],
    ),
    (
        f"{CODE} 2.2: ref does not follow",
        OFF + "actor_rollout_ref.ref.profiler.enable=True",
        [("nsight", "ref", (0,), "1:3,5", "step")],
    ),
    (
        f"{CODE}: steps null is off",
        "global_profiler.tool=nsys global_profiler.steps=null " + ROLE + "enable=True",
        [("nsight", "actor rollout", (0,), "", "step")],
    ),
    (f"{CODE}: steps set, tool null", "global_profiler.steps=[1] " + ROLE + "enable=True", []),
    (
        f"{CODE}: discrete from the global key",
        NSYS + "global_profiler.global_tool_config.nsys.discrete=True",
        [("nsight", "actor rollout", (0,), "1:3,5", "phase")],
    ),
    (
        f"{CODE} 2.6: continuous and discrete, discrete wins",
        NSYS + "global_profiler.profile_continuous_steps=True"
        " global_profiler.global_tool_config.nsys.discrete=True",
        [("nsight", "actor rollout", (0,), "1:3,5", "phase")],
    ),
    (
        f"{CODE}: torch",
        NSYS.replace("nsys", "torch") + ROLE + "tool_config.torch.discrete=True",
        [("torch", "actor rollout", (0,), "1:3,5", "phase")],
    ),
    (
        f"{CODE}: torch_memory heeds neither steps nor ranks nor roles",
        NSYS.replace("nsys", "torch_memory"),
        [("memory", "actor", None, "1:", "step")],
    ),
    (
        f"{CODE}: an interpolation is a default",
        NSYS + "'actor_rollout_ref.rollout.profiler.enable=${actor_rollout_ref.actor.profiler.enable}'",
        [("nsight", "actor rollout", (0,), "1:3,5", "step")],
    ),
    (
        f"{CODE}: roles that differ in ranks are captures of their own",
        NSYS + "critic.profiler.enable=True critic.profiler.all_ranks=True",
        [("nsight", "actor rollout", (0,), "1:3,5", "step"), ("nsight", "critic", None, "1:3,5", "step")],
    ),
    (
        f"{CODE}: the reward model",
        OFF + "reward_model.profiler.enable=True",
        [("nsight", "reward_model", (0,), "1:3,5", "step")],
    ),
]


@pytest.mark.parametrize(("origin", "text", "expected"), TODAY)
def test_todays_readings(origin: str, text: str, expected: Any) -> None:
    assert read(text) == expected, origin


# What verl accepts and then does nothing with, or fails on once workers are built; here each is an error
# before the job.
REFUSED = [
    (
        f"{CODE} 2.4 [run]: ranks=None is an AssertionError",
        NSYS + ROLE + "ranks=null",
        "null stops verl with an assertion error",
    ),
    (
        f"{CODE} 2.4 [run]: ranks ['0'] match nothing, silently",
        NSYS + ROLE + """'ranks=["0"]'""",
        "ranks are numbers: write [0]",
    ),
    (
        f"{CODE} 2.4: negative ranks are not checked",
        NSYS + ROLE + "ranks=[-1]",
        "ranks are whole numbers from 0",
    ),
    (
        f"{CODE} 2.5: an unknown tool is a silent no-op",
        NSYS.replace("=nsys", "=nsight"),
        "'nsight' is unknown; allowed are nsys, torch or torch_memory",
    ),
    (f"{CODE} 2.5: npu is Ascend's", NSYS.replace("=nsys", "=npu"), "Ascend"),
    (
        f"{CODE} 2.5: steps that are no steps are not checked",
        NSYS.replace("[1,2,5]", "[0]"),
        "list of steps counted from 1",
    ),
    (
        f"{CODE} 2.1: global_profiler.discrete does not exist",
        NSYS + "global_profiler.discrete=True",
        "has no key 'discrete'",
    ),
    (
        f"{CODE} 2.1: a bare profiler block does not exist",
        NSYS + "profiler.steps=[1]",
        "write global_profiler.steps",
    ),
    (
        f"{CODE} 2.5 [run]: torch schedule is a TypeError in the worker",
        NSYS.replace("nsys", "torch") + ROLE + "tool_config.torch.schedule=1",
        "has no key 'schedule'",
    ),
    (
        f"{CODE} 2.5: unknown keys fail at worker construction",
        NSYS + ROLE + "rank=[0]",
        "Did you mean 'ranks'?",
    ),
    (
        f"{CODE} 2.5: contents 'cpu' fails per character",
        NSYS.replace("nsys", "torch") + ROLE + "tool_config.torch.contents=cpu",
        "must be a list of cpu, cuda, shapes",
    ),
    (
        f"{CODE} 2.6 [run]: discrete mismatch loses the rest of the step",
        NSYS + "critic.profiler.enable=True critic.profiler.tool_config.nsys.discrete=True",
        "is true for critic and false for actor or rollout",
    ),
]


@pytest.mark.parametrize(("origin", "text", "part"), REFUSED)
def test_what_verl_lets_pass_is_refused(origin: str, text: str, part: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(text)
    assert part in str(caught.value), origin


def test_legacy_discrete_must_agree() -> None:
    """The document leaves it to the user: "if one component is set to True, all components should be set
    to True".
    """
    text = (
        "trainer.profile_steps=[1] actor_rollout_ref.actor.profile_ranks=[0] critic.profile_ranks=[0]"
        " critic.profile_discrete=True"
    )
    with pytest.raises(
        RequestError, match="profile_discrete is true for critic and false for actor; if one is, all must be"
    ):
        read_legacy(text)


def render(legacy: bool = False, fmt: str = "hydra", **fields: Any) -> Any:
    request = request_from_dict({"captures": [{"workers": "actor", "steps": "1:3,5"} | fields]})
    return (LEGACY_DIALECT if legacy else MAIN).render(request, fmt)


def test_capture_range_end_is_computed_from_the_plan() -> None:
    """verl writes repeat-shutdown:6*len(steps), whatever the mode: 18 here, where 2 windows or 6 tasks
    happen.
    """
    end = re.compile(r"capture-range-end=(\S+)")
    assert end.search(render().text)[1] == "repeat-shutdown:2", "adjacent steps are one range"
    everyone = render(each="phase", workers="actor,rollout,ref,critic,reward_model").text
    for text in (render(each="phase").text, everyone):
        assert end.search(text)[1] == "repeat", "only verl knows how many tasks its processes run"
    assert end.search(render(legacy=True).text)[1] == "repeat-shutdown:3", "the old scheme has a range a step"


def test_a_snapshot_over_several_steps_is_said() -> None:
    """`memory_snapshot_num_steps` of verl 0.9."""
    text = NSYS.replace("=nsys", "=torch_memory") + ROLE + "enable=True "
    key = "global_profiler.global_tool_config.torch_memory.memory_snapshot_num_steps"
    for number, said in ((1, False), (3, True)):
        notes = verl.framework("verl", installed="").import_(f"{text} {key}={number}", "test").notes
        assert any("memory_snapshot_num_steps 3 is left out" in note for note in notes) == said


def test_the_controller_has_options_of_its_own() -> None:
    """verl hands them to Ray as they are, for the controller's whole life; there are no steps in it."""
    rendered = render(workers="controller,actor", options={"trace": "nvtx"})
    for whose in ("controller", "worker"):
        assert f"++global_profiler.global_tool_config.nsys.{whose}_nsight_options.trace=nvtx" in rendered.text
    assert "controller_nsight_options" not in render(options={"trace": "nvtx"}).text
    assert any("verl also records its controller" in note for note in MAIN.import_(NSYS, "test").notes)


def test_discrete_is_the_same_for_every_role_of_the_old_scheme() -> None:
    text = render(legacy=True, each="phase").text
    assert re.findall(r"profile_discrete=(\w+)", text) == ["True"] * 4


def test_continuous_and_discrete_are_never_both_on() -> None:
    for each, continuous, discrete in (("step", "True", "False"), ("phase", "False", "True")):
        text = render(each=each).text
        assert f"profile_continuous_steps={continuous} " in text and f"nsys.discrete={discrete} " in text


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"each": "phase"},
        {"backend": "torch", "steps": "3", "options": {"with_stack": True}},
        {"backend": "memory"},
    ],
)
def test_no_key_that_does_not_exist(fields: dict[str, Any]) -> None:
    """Reference 2.1, 2.2, 2.3 and 2.5 list these as dead, documented only, or refused by the dataclasses."""
    dead = (
        "global_profiler.discrete",
        "torch.schedule",
        "torch_memory.context",
        "torch_memory.stacks",
        "torch_memory.kw_args",
        "actor_rollout_ref.critic",
        "actor_rollout_ref.rm",
        "npu_profile",
        "actor_rollout_ref.profiler",
    )
    for fmt in ("hydra", "yaml"):
        for legacy in (False, True):
            text = render(legacy, fmt, **fields).text
            settings = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
            assert not [key for key in dead if key in settings]
            assert not re.search(r"^'?\+*profiler\.", settings, re.MULTILINE)
            assert legacy or "trainer." not in settings


def test_no_one_letter_option_beside_verls_long_ones() -> None:
    rendered = render(options={"t": "cuda,nvtx"})
    assert "worker_nsight_options.trace='cuda,nvtx'" in rendered.text and "options.t=" not in rendered.text
    assert any("option t is written as trace" in note for note in rendered.notes)


LOST = [
    ({"workers": "controller"}, "controller is recorded from its start to its end"),
    ({"backend": "rocprof_sys"}, "verl has no rocprof_sys"),
    ({"backend": "memory"}, "dumps a snapshot of every actor rank after every step"),
    ({"backend": "torch", "workers": "rollout"}, "traced in discrete mode alone, so it is set for them"),
    ({"backend": "torch", "workers": "*"}, "write each: phase"),
    ({"steps": "3:"}, "the open range '3:' is cut to 10 steps"),
    ({"flags": ["python-backtrace"]}, "flags python-backtrace"),
    ({"backend": "torch"}, "later windows overwrite earlier ones"),
    ({"workers": "acter"}, "Did you mean 'actor'?"),
    ({"backend": "memory", "each": "phase"}, "torch_memory dumps once a step"),
]


@pytest.mark.parametrize(("fields", "part"), LOST)
def test_says_what_is_lost(fields: dict[str, Any], part: str) -> None:
    assert any(part in loss for loss in render(**fields).losses)


def test_two_tools_or_lists_of_steps_are_lost() -> None:
    captures = [
        {"workers": "actor", "steps": 3},
        {"workers": "critic", "steps": 4},
        {"workers": "actor", "steps": 3, "backend": "torch"},
    ]
    losses = MAIN.render(request_from_dict({"captures": captures}), "hydra").losses
    assert [loss[:23] for loss in losses] == ["capture 2 is left out: ", "capture 3 is left out: "]


def test_configs_are_frozen() -> None:
    """test_nvtx_profile.py: attribute and item assignment fail."""
    spec = request_from_dict({"captures": [{"workers": "actor", "steps": 3}]}).captures[0]
    with pytest.raises(FrozenInstanceError):
        spec.backend = "torch"  # type: ignore[misc]
    with pytest.raises(TypeError):
        spec["backend"] = "torch"  # type: ignore[index]


def test_every_role_keeps_its_own_settings() -> None:
    """test_nvtx_profile.py: every role's profiler converts with equal enable, all_ranks and ranks."""
    captures = [
        {"workers": role, "steps": 3, "ranks": [i]} for i, role in enumerate(ROLE_PATHS) if role != "env"
    ]
    request = request_from_dict({"captures": captures})
    assert MAIN.import_(MAIN.render(request, "yaml").text, "test").request == request


WORLDS = [
    (
        {
            "trainer": {"nnodes": 2, "n_gpus_per_node": 8},
            "actor_rollout_ref": {
                "rollout": {"tensor_model_parallel_size": 4},
                "actor": {"use_kl_loss": True},
            },
        },
        {"actor": 16, "rollout": 4, "ref": 16, "controller": 1},
    ),
    (
        {
            "trainer": {"nnodes": 1, "n_gpus_per_node": 4},
            "algorithm": {"adv_estimator": "gae"},
            "reward_model": {"enable": True},
        },
        {"actor": 4, "rollout": 4, "critic": 4, "reward_model": 4, "controller": 1},
    ),
    (
        {
            "trainer": {"nnodes": 2, "n_gpus_per_node": 8},
            "actor_rollout_ref": {
                "rollout": {
                    "tensor_model_parallel_size": 2,
                    "data_parallel_size": 2,
                    "pipeline_model_parallel_size": 2,
                }
            },
        },
        {"actor": 16, "rollout": 2, "controller": 1},  # its llm_server: world_size // rollout_world_size
    ),
    ({}, {}),
]


@pytest.mark.parametrize(("config", "world"), WORLDS)
def test_world_of_a_configuration(config: dict[str, Any], world: dict[str, int]) -> None:
    assert MAIN.world(config) == world


def test_a_count_that_verl_computes_is_followed_where_it_stands_here_and_else_no_world_is_made_up() -> None:
    config = {
        "tp": 4,
        "trainer": {"nnodes": 1, "n_gpus_per_node": 8},
        "actor_rollout_ref": {"rollout": {"tensor_model_parallel_size": "${tp}"}},
        "algorithm": {"use_kl_in_reward": "${oc.select:kl,false}"},
    }
    assert MAIN.world(config) == {"actor": 8, "rollout": 2, "controller": 1}
    for path, value in (("tp", "${oc.env:TP}"), ("algorithm", {"use_kl_in_reward": "${oc.env:KL}"})):
        with pytest.raises(UnknownWorld):
            MAIN.world({**config, path: value})


ONE = f"{A}.ranks=[1] {A}.enable=True "
AS_HYDRA = [
    ("a mapping is merged", f"{A}.ranks=[1] '{A}={{enable: True}}' {A}.all_ranks=False", (1,)),
    ("`+` and `++` merge too", f"{A}.ranks=[1] '++{A}={{enable: True}}'", (1,)),
    ("a group's file is under all values", ONE + "actor_rollout_ref/actor=megatron_actor", (1,)),
    ("wherever it is put", ONE + "actor@actor_rollout_ref.actor=megatron_actor", (1,)),
    ("a number with `_`", f"{A}.ranks=[1_0] {A}.enable=True", (10,)),
]


@pytest.mark.parametrize(("rule", "overrides", "ranks"), AS_HYDRA)
def test_overrides_are_read_as_hydra_reads_them(rule: str, overrides: str, ranks: Any) -> None:
    assert read(OFF + overrides) == [("nsight", "actor rollout", ranks, "1:3,5", "step")], rule


YAML = """
mine: [1, 2, 5]
global_profiler:
  tool: nsys
  steps: {0}
actor_rollout_ref:
  actor:
    profiler: {{enable: yes, all_ranks: off, ranks: [1, 0x2]}}
  rollout:
    profiler:
      enable: ${{oc.select:actor_rollout_ref.actor.profiler.enable,false}}
      all_ranks: ${{oc.select:actor_rollout_ref.actor.profiler.all_ranks,false}}
      ranks: ${{oc.select:actor_rollout_ref.actor.profiler.ranks,[]}}
  ref:
    profiler: {{enable: No, ranks: "${{oc.select:nobody,[]}}"}}
"""


def test_a_file_that_hydra_has_written_is_read_as_omegaconf_reads_it() -> None:
    """Its rollout takes the actor's ranks by `${…}`; `yes`, `off` and 0x2 are YAML 1.1."""
    assert read(YAML.format("${mine}")) == [("nsight", "actor rollout", (1, 2), "1:3,5", "step")]
    imported = MAIN.import_(YAML.format("${oc.env:STEPS}"), "test")
    assert not imported.request
    assert any("global_profiler.steps" in note and "not set" in note for note in imported.notes)
