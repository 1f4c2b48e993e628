"""The options by which any command takes or changes a request; they win over the file and the environment."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from rlprof_ops import backends
from rlprof_ops.request.problems import words

OPTIONS = {
    "steps": "Steps, e.g. 3:5,10.",
    "workers": "Worker names or patterns, e.g. '*policy*'.",
    "ranks": "all, none, or numbers: 0,1.",
    "backend": f"{words(backends.builtin())}.",
    "each": "step or phase: what makes one report.",
    "output_dir": "Where reports go; default: the run folder.",
}


def request_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--steps`, `--workers`, … and hand them on as `overrides` (field -> text; None when not given)."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        overrides = {name: kwargs.pop(name) for name in OPTIONS}
        return function(*args, overrides=overrides, **kwargs)

    for name, text in reversed(OPTIONS.items()):
        wrapped = click.option("--" + name.replace("_", "-"), name, help=text)(wrapped)
    return wrapped
