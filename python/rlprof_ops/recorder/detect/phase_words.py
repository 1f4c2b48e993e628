"""What the name of a phase says of it, by its words: "retrieval" is no eval, "generate_async" no sync."""

from __future__ import annotations

import re

_BEGINS = r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))"  # a word, after a sign, a number or as in camelCase


def _with_words(words: str, never: str = "") -> re.Pattern[str]:
    """Names with a word that begins as one of `words`, but for those with something of `never` in them."""
    but = f"^(?!.*(?i:{never})).*?" if never else ""
    return re.compile(f"{but}{_BEGINS}(?i:{words})", re.DOTALL)


# Work that comes every so many steps: it is told by its name and does not count as a slow step.
SEASONAL = _with_words(
    r"eval|valid|(?<!_)(?:val(?![a-z])|test)|checkpoint(?!_?engine)|ckpt|(?:auto)?save|logging|dump|upload"
)
# Being in one of these is waiting for others: there the rank that is not slow takes longest.
WAITING = _with_words(
    r"a?wait|barrier|sync\b|all_?reduce|all_?gather|reduce_?scatter|broadcast|collective|(?:py)?nccl"
)
CALLS = _with_words(r"reward|(?:re)?score|tool|judge|verif|env(?!elop)")
GENERATION = _with_words(
    r"(?:re|pre)?gen(?!eral|eric|rm)|agent_?loop|rollout|(?:re)?sampl",
    never=r"weight|sync_model|prepare_for_gen|^idle/",
)
