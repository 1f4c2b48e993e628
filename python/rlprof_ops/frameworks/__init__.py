"""Trainers' dialects: the same request in the words of NeMo RL, verl (every scheme) and RLinf, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlprof_ops.frameworks.base import Framework

VERL = ("verl", "verl-0.8", "verl-0.6", "verl-0.5", "verl-0.4", "verl-legacy")
NAMES = ("nemo_rl", *VERL, "rlinf")


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
    if name in VERL:
        from rlprof_ops.frameworks import verl

        return verl.framework(name)
    if name == "rlinf":
        from rlprof_ops.frameworks import rlinf

        return rlinf.FRAMEWORK
    raise UsageError(f"framework {name!r} is unknown; allowed are {words(NAMES)}.{nearest(name, NAMES)}")
