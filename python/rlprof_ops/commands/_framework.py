"""The value of `--framework`: the name of a trainer's dialect."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from rlprof_ops import trainers
from rlprof_ops.errors import UsageError


class FrameworkName(click.ParamType[str]):
    """One of the trainers' names here, or one that an installed wheel brings."""

    name = "framework"

    def get_metavar(self, param: click.Parameter, ctx: Any = None) -> str:
        return f"[{'|'.join(trainers.frameworks())}]"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return trainers.checked(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in trainers.frameworks() if name.startswith(incomplete)]
