"""Hypothesis strategies: requests a person could write, and things a person could write by mistake."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from rlprof_ops.backends import builtin
from rlprof_ops.request import CaptureSpec, ProfileRequest, Steps, Window

# RLPROF_EXAMPLES=2000 digs.
settings.register_profile(
    "requests", settings.get_profile("rlprof"), max_examples=int(os.environ.get("RLPROF_EXAMPLES", "40"))
)
settings.load_profile("requests")

WORKERS = ("policy_worker", "generation_worker", "ref_worker", "reward_worker", "env_worker")


@st.composite
def windows(draw: st.DrawFn, top: int = 60, may_be_open: bool = True) -> Window:
    start = draw(st.integers(1, top))
    if may_be_open and draw(st.integers(0, 9)) == 0:
        return Window(start, None)
    return Window(start, draw(st.integers(start + 1, top + 10)))


def steps(may_be_open: bool = True, least: int = 0) -> st.SearchStrategy[Steps]:
    return st.lists(windows(may_be_open=may_be_open), min_size=least, max_size=5).map(Steps.of)


option_names = st.from_regex(r"[a-z][a-z0-9-]{0,15}", fullmatch=True)
option_values = st.one_of(
    st.from_regex(r"[A-Za-z0-9_./,:=@%+-]{0,12}", fullmatch=True),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12),
)
texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)


def ranks(top: int) -> st.SearchStrategy[tuple[int, ...] | None]:
    return st.one_of(
        st.none(), st.lists(st.integers(0, top), max_size=4).map(lambda r: tuple(sorted(set(r))))
    )


@st.composite
def captures(draw: st.DrawFn, max_rank: int = 30, live: bool = False) -> CaptureSpec:
    options = draw(st.dictionaries(option_names, option_values, max_size=3))
    return CaptureSpec(
        backend=draw(st.sampled_from(("nsight", "torch") if live else builtin())),
        workers=tuple(
            draw(st.lists(st.sampled_from((*WORKERS, "*", "*worker")), min_size=1, max_size=3, unique=True))
        ),
        ranks=draw(ranks(max_rank)),
        steps=draw(steps(least=int(live))),
        each=draw(st.sampled_from(("step", "phase"))),
        options=options,
        flags=tuple(draw(st.lists(option_names.filter(lambda n: n not in options), max_size=2, unique=True))),
        env=draw(st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), texts, max_size=2)),
        on_error=draw(st.sampled_from(("continue", "fail"))),
    )


def requests(max_rank: int = 30, live: bool = False) -> st.SearchStrategy[ProfileRequest]:
    """Requests of one mode per backend, so that no two captures are in conflict; `live` ones ask for
    something.
    """

    def one_mode(specs: list[CaptureSpec]) -> tuple[CaptureSpec, ...]:
        from dataclasses import replace

        mode: dict[str, str] = {}
        return tuple(replace(s, each=mode.setdefault(s.backend, s.each)) for s in specs)

    return st.builds(
        ProfileRequest,
        captures=st.lists(captures(max_rank, live), min_size=int(live), max_size=3).map(one_mode),
        enabled=st.just(True) if live else st.booleans(),
        output_dir=st.one_of(st.none(), texts.filter(bool).map(lambda t: "/" + t.replace("$", ""))),
    )


plain_data: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def near_requests() -> st.SearchStrategy[Any]:
    """The right keys with any values: deeper into the reader than blind data gets."""
    keys = ("backend", "workers", "ranks", "steps", "each", "options", "flags", "env", "on_error", "step", 3)
    values = st.one_of(
        plain_data, st.sampled_from(["all", "3:5", "nsight", "step", [0, 1], {"t": "cuda"}, "1-10", "0:10"])
    )
    capture = st.dictionaries(st.sampled_from(keys), values, max_size=6)
    top = st.dictionaries(st.sampled_from(("enabled", "output_dir", "steps")), values, max_size=2)
    return st.tuples(top, st.one_of(st.lists(st.one_of(capture, plain_data), max_size=3), plain_data)).map(
        lambda pair: {**pair[0], "captures": pair[1]}
    )
