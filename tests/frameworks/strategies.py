"""Hypothesis strategies for requests that one trainer can express, and for any request in its worker
names.
"""

from __future__ import annotations

from hypothesis import strategies as st
from tests.request.strategies import option_names, option_values, ranks, steps, texts, windows

from rlprof_ops.backends.nsight_presets import LONG
from rlprof_ops.request import CaptureSpec, ProfileRequest, Steps

SPELLINGS = {*LONG, *LONG.values(), "preset"}  # a dialect writes one of two names, and presets written out
names = option_names.filter(lambda n: n not in SPELLINGS)
options = st.dictionaries(names, option_values, max_size=3)
folders = texts.filter(bool).map(lambda t: "/" + t.replace("$", ""))
one_range = windows(may_be_open=False).map(lambda w: Steps((w,)))
listed = steps(may_be_open=False)


def nemo_rl() -> st.SearchStrategy[ProfileRequest]:
    patterns = st.lists(
        st.sampled_from(("*policy*", "*vllm*", "megatron_policy_worker", "dtensor_policy_worker*", "*")),
        min_size=1,
        max_size=3,
        unique=True,
    ).map(tuple)
    nsight = st.builds(CaptureSpec, workers=patterns, steps=one_range, options=options)
    torch = st.builds(CaptureSpec, backend=st.just("torch"), workers=patterns, steps=one_range)
    return st.one_of(
        st.builds(ProfileRequest, captures=st.tuples(nsight)),
        st.builds(ProfileRequest, captures=st.tuples(nsight, torch)),
        st.builds(
            ProfileRequest, captures=st.tuples(torch), output_dir=st.one_of(st.none(), folders.map(str.strip))
        ),
    )


ROLES = ("actor", "rollout", "ref", "critic", "reward_model")


@st.composite
def _roles(draw: st.DrawFn, roles: tuple[str, ...] = ROLES) -> dict[tuple[int, ...] | None, tuple[str, ...]]:
    """Roles by their ranks, in verl's order."""
    found: dict[tuple[int, ...] | None, tuple[str, ...]] = {}
    for role in roles:
        if draw(st.booleans()):
            own = draw(ranks(9).filter(lambda r: r != ()))
            found[own] = (*found.get(own, ()), role)
    return found


@st.composite
def verl(draw: st.DrawFn) -> ProfileRequest:
    backend = draw(st.sampled_from(("nsight", "torch", "memory")))
    each = draw(st.sampled_from(("step", "phase"))) if backend == "nsight" else "step"
    which = draw(one_range if backend == "torch" else steps(may_be_open=False))
    wanted = {
        "nsight": options,
        "torch": st.dictionaries(
            st.sampled_from(("record_shapes", "profile_memory", "with_stack")), st.just("true")
        ),
        "memory": st.dictionaries(
            st.sampled_from(("trace_alloc_max_entries", "stack_depth")), st.integers(1, 999).map(str)
        ),
    }
    chosen = draw(wanted[backend])
    specs = [CaptureSpec(backend, roles, own, which, each, chosen) for own, roles in draw(_roles()).items()]
    folder = None if backend == "nsight" or not specs else draw(st.one_of(st.none(), folders))
    return ProfileRequest(tuple(specs), output_dir=folder)


@st.composite
def verl_legacy(draw: st.DrawFn) -> ProfileRequest:
    each, which, chosen = draw(st.sampled_from(("step", "phase"))), draw(listed), draw(options)
    specs = [CaptureSpec("nsight", roles, own, which, each, chosen) for own, roles in draw(_roles()).items()]
    return ProfileRequest(tuple(specs))


@st.composite
def rlinf(draw: st.DrawFn) -> ProfileRequest:
    groups = ("ActorGroup", "RolloutGroup", "EnvGroup", "RewardGroup", "Actor", "Rollout", "Env", "Reward")
    workers = draw(
        st.one_of(
            st.just(("*",)),
            st.sets(st.sampled_from(groups), min_size=1).map(lambda s: tuple(g for g in groups if g in s)),
        )
    )
    whole_life = Steps.parse("1:")
    which = draw(st.one_of(listed, st.just(whole_life)))
    backend = draw(st.sampled_from(("nsight", "rocprof_sys", "torch")))
    folder = draw(st.one_of(st.none(), folders))
    if backend == "torch":
        switches = {
            "with_stack": "true",
            "record_shapes": "true",
            "with_modules": "false",
            "schedule_active": "3",
            "activities": "cpu",
        }
        keys = draw(st.sets(st.sampled_from(sorted(switches))))
        which = Steps.parse(f"1:{draw(st.integers(2, 30))}")
        spec = CaptureSpec(
            "torch", ("ActorGroup",), None, which, options={k: switches[k] for k in sorted(keys)}
        )
        return ProfileRequest((spec,), output_dir=folder)
    chosen = draw(options)
    if backend == "nsight":
        flags = tuple(draw(st.lists(names.filter(lambda n: n not in chosen), max_size=2, unique=True)))
        spec = CaptureSpec(backend, workers, None, which, options=chosen, flags=flags)
    else:
        env = draw(
            st.dictionaries(
                st.from_regex(r"[A-Z_]{1,8}", fullmatch=True),
                texts.map(lambda t: t.replace("$", "")),
                max_size=2,
            )
        )
        spec = CaptureSpec(backend, workers, None, which, options=chosen, env=env)
    return ProfileRequest((spec,), enabled=draw(st.booleans()), output_dir=folder)


EXPRESSIBLE = {"nemo_rl": nemo_rl, "verl": verl, "verl-legacy": verl_legacy, "rlinf": rlinf}
