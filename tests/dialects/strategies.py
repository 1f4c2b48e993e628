"""Hypothesis strategies for requests that one trainer can express, and for any request in its worker
names.
"""

from __future__ import annotations

from functools import partial

from hypothesis import strategies as st
from tests.request.strategies import option_names, option_values, ranks, steps, texts, windows

from rlprof_ops.backends.nsight.presets import LONG
from rlprof_ops.request import CaptureSpec, ProfileRequest, Steps
from rlprof_ops.trainers.verl.schemes import SCHEMES, Scheme

SPELLINGS = {*LONG, *LONG.values(), "preset"}  # a dialect writes one of two names, and presets written out
names = option_names.filter(lambda n: n not in SPELLINGS)
# OmegaConf takes what begins with `${` for an interpolation, or refuses the whole configuration.
references = st.from_regex(r"[a\\]{0,3}\$\{[A:.}\\]{0,4}", fullmatch=True)
options = st.dictionaries(names, option_values | references, max_size=3)
folders = (texts.filter(bool) | references).map("/".__add__)
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
    traces = st.one_of(st.just("torch_profiler_trace"), folders.map(str.strip))
    # Its torch profiler records the controller whatever the patterns are.
    with_controller = patterns.map(lambda found: (*found, "controller"))
    torch = st.builds(CaptureSpec, backend=st.just("torch"), workers=with_controller, steps=one_range)
    return st.one_of(
        st.builds(ProfileRequest, captures=st.tuples(nsight)),
        st.builds(
            ProfileRequest,
            captures=st.tuples(nsight, torch),
            output_dir=traces.map(lambda folder: {"torch": folder}),
        ),
        st.builds(ProfileRequest, captures=st.tuples(torch), output_dir=traces),
    )


@st.composite
def _roles(draw: st.DrawFn, roles: tuple[str, ...]) -> dict[tuple[int, ...] | None, tuple[str, ...]]:
    """Roles by their ranks, in verl's order."""
    found: dict[tuple[int, ...] | None, tuple[str, ...]] = {}
    for role in roles:
        if draw(st.booleans()):
            own = draw(ranks(9).filter(lambda r: r != ()))
            found[own] = (*found.get(own, ()), role)
    return found


def verl(name: str) -> st.SearchStrategy[ProfileRequest]:
    scheme = SCHEMES[name]
    return _verl_old(scheme) if scheme.layout != "global" else _verl(scheme)


@st.composite
def _verl(draw: st.DrawFn, scheme: Scheme) -> ProfileRequest:
    roles = tuple(role for role in scheme.paths if role != "env")
    backend = draw(st.sampled_from(("nsight", "torch", "memory")[: 3 if scheme.exact_memory else 1]))
    if scheme.torch_contents and draw(st.booleans()):
        backend = "torch"
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
    if backend == "torch":  # rollout is taken in discrete mode alone
        roles = tuple(role for role in roles if role != "rollout")
    picked = draw(_roles(roles))
    if not picked and backend == "memory":
        picked = {None: ("actor",)}  # without any role verl's own examples are read
    specs = [CaptureSpec(backend, roles, own, which, each, chosen) for own, roles in picked.items()]
    may_say = bool(specs) and (backend != "nsight" or scheme.relocates)
    folder = draw(st.one_of(st.none(), folders)) if may_say else None
    if not which and backend == "memory":
        return ProfileRequest()
    return ProfileRequest(tuple(specs), output_dir=folder)


@st.composite
def _verl_old(draw: st.DrawFn, scheme: Scheme) -> ProfileRequest:
    each, which, chosen = draw(st.sampled_from(("step", "phase"))), draw(listed), draw(options)
    if scheme.layout == "shared":
        own = draw(ranks(9).filter(lambda r: r != ()))
        hybrid = {own: ("actor", "rollout", "ref")} if draw(st.booleans()) else {}
        picked = dict(hybrid)
        for one, roles in draw(_roles(("critic", "reward_model"))).items():
            picked[one] = (*picked.get(one, ()), *roles)
    else:
        picked = draw(_roles(tuple(scheme.paths)))
    specs = [CaptureSpec("nsight", roles, own, which, each, chosen) for own, roles in picked.items()]
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
    backend = draw(st.sampled_from(("nsight", "torch")))  # RLinf's rocprof_sys starts no worker
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
    flags = tuple(draw(st.lists(names.filter(lambda n: n not in chosen), max_size=2, unique=True)))
    spec = CaptureSpec(backend, workers, None, which, options=chosen, flags=flags)
    return ProfileRequest((spec,), enabled=draw(st.booleans()), output_dir=folder)


EXPRESSIBLE = {"nemo_rl": nemo_rl, "rlinf": rlinf} | {name: partial(verl, name) for name in SCHEMES}
