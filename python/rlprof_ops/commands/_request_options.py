"""The options by which any command takes or changes a request; they win over the file and the environment."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click

from rlprof_ops import backends
from rlprof_ops.request import ProfileRequest, load_request
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


def for_this_machine(
    path: str | None, env: Mapping[str, str], overrides: Mapping[str, Any] | None = None
) -> ProfileRequest:
    """The request of a job that starts here, checked as ray.sub checks one before its first node. `env`: the
    job's variables. Raises RequestError.
    """
    from rlprof_ops.host.gpus import has_gpu
    from rlprof_ops.request.check import check_request

    request = load_request(path, env, overrides or {})
    for note in (*request.notes, *check_request(request, backends.Where(gpu=has_gpu()), env)):
        click.echo(f"rlprof: {note}", err=True)
    return request
