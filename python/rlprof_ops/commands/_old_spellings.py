"""Commands under the names that they had before: hidden, for one release."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def _runs(words: Sequence[str]) -> list[str]:
    here = () if any(not word.startswith("-") for word in words) else (".",)
    return ["ps", *words, *here]


def _convert(option: str) -> Callable[[Sequence[str]], list[str]]:
    def today(words: Sequence[str]) -> list[str]:
        now = {"--framework": option, "--json": "--format=json"}
        parts = [word.partition("=") for word in words]
        return ["convert", *(now.get(name, name) + equals + value for name, equals, value in parts)]

    return today


# Old name -> how it is written now, and its words in that way.
SPELLINGS: dict[str, tuple[str, Callable[[Sequence[str]], list[str]]]] = {
    "import": ("convert --from TRAINER", _convert("--from")),
    "live": ("top --serve", lambda words: ["top", "--serve", *words]),
    "render": ("convert --to TRAINER", _convert("--to")),
    "runs": ("ps FOLDER", _runs),
    "view": ("report --serve", lambda words: ["report", "--serve", *words]),
}
