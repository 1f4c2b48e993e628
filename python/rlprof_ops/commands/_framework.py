"""The value of `--framework`: the name of a trainer's dialect."""

from __future__ import annotations

import click

from rlprof_ops import trainers
from rlprof_ops.errors import UsageError


class FrameworkName(click.Choice[str]):
    """One of the names here, or one that an installed wheel brings."""

    def __init__(self) -> None:
        super().__init__(trainers.frameworks())

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return trainers.checked(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
