"""A command whose unknown options are sbatch's, and whose words after `--` are the job's command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_META = "rlprof.words"
# In the help and in the shell's completion; given to sbatch as they are.
FORWARDED = {
    "nodes": (("-N", "--nodes"), "N", "Nodes."),
    "gpus_per_node": (
        ("--gpus-per-node",),
        "N",
        "GPUs of each node; or --gres=gpu:N, as your site wants it.",
    ),
    "time_limit": (("-t", "--time"), "LIMIT", "Time limit, as sbatch has it: 4:00:00."),
}


class SbatchCommand(click.Command):
    """Splits its words before click sees them. `leading`: how many positional words stand first."""

    ignore_unknown_options = True
    leading = 0

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from rlprof_ops.slurm.sbatch_options import split

        if ctx.resilient_parsing:  # a shell completes a line that is not whole yet
            return super().parse_args(ctx, args)
        first = [word for word in args[: self.leading] if not word.startswith("-")]
        if len(first) < self.leading and not {"-h", "--help"} & set(args):
            raise click.UsageError(f"the job comes first, as in: {ctx.command_path} 4711 --time=2:00:00", ctx)
        words = split(args[len(first) :], self._options(ctx))
        ctx.meta[_META] = words
        ctx.ignore_unknown_options = False
        return super().parse_args(ctx, [*words.ours, *first])

    def _options(self, ctx: click.Context) -> dict[str, bool]:
        """Our options as typed -> whether a value follows; without those that are sbatch's."""
        forwarded = {name for names, _, _ in FORWARDED.values() for name in names}
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        named = ((name, not option.is_flag) for option in options for name in option.opts)
        return {name: takes for name, takes in named if name not in forwarded}


class RetryCommand(SbatchCommand):
    """Its job comes first, since sbatch's options may take the word after them."""

    leading = 1

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return list(reversed(super().collect_usage_pieces(ctx)))


def words_of(ctx: click.Context) -> Any:
    """The `Words` of this command line."""
    return ctx.meta[_META]


def forwarded_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, (names, metavar, text) in reversed(FORWARDED.items()):
        function = click.option(*names, name, metavar=metavar, expose_value=False, help=text)(function)
    return function
