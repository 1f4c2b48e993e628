"""Trainers' dialects: the same request in the words of NeMo RL, verl (both schemes) and RLinf, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlprof_ops.frameworks.base import Framework

NAMES = ("nemo_rl", "verl", "verl-legacy", "rlinf")


def get(name: str) -> Framework:
    """The dialect of that name.

    Raises:
        UsageError: for any other name, with the nearest one.
    """
    from rlprof_ops.errors import UsageError
    from rlprof_ops.request.problems import nearest, words

    if name == "nemo_rl":
        from rlprof_ops.frameworks import nemo_rl

        return nemo_rl.FRAMEWORK
    if name in ("verl", "verl-legacy"):
        from rlprof_ops.frameworks import verl

        return verl.FRAMEWORK if name == "verl" else verl.LEGACY
    if name == "rlinf":
        from rlprof_ops.frameworks import rlinf

        return rlinf.FRAMEWORK
    raise UsageError(f"framework {name!r} is unknown; allowed are {words(NAMES)}.{nearest(name, NAMES)}")
