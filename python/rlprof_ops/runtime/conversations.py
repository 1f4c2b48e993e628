"""Which requests are answers to one prompt, and which are turns of one sample, told by their tokens.

Trainers give each request an id of its own, also a turn of a conversation and each of GRPO's answers. What
they share is the prompt: answers to one prompt have the same tokens, and a later turn's prompt begins with
the prompt and the answer of the turn before.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

BLOCK = 32  # tokens that are hashed at once
MOST_ENDED = 8192  # answers that a next turn may follow
MOST_PROMPTS = 256  # whose hashes are kept
_CLOCKS_NS = 1_000_000  # by which the engine's clock and ours may disagree


class Place(NamedTuple):
    """Where a request belongs. `group`: a hash of the sample's first prompt, the same in every process;
    `first`: the id of the sample's first request, None where it is this one.
    """

    group: int
    turn: int
    first: str | None


class _Ended(NamedTuple):
    """An answer that a next turn may follow."""

    first: str
    group: int
    turn: int
    finished_ns: int


class Conversations:
    """The answers of this process that a later turn may begin with, the newest ones.

    An answer is found by the hash of its whole blocks of tokens, prompt included, and then by the tokens
    after them. Its last token is left out: a trainer may drop what ended it.
    """

    def __init__(self) -> None:
        self._ended: dict[int, dict[tuple[int, ...], list[_Ended]]] = {}
        self._blocks: dict[int, tuple[list[int], tuple[int, ...]]] = {}
        self._order: deque[tuple[int, tuple[int, ...]]] = deque()

    def place(
        self,
        name: str,
        prompt: Sequence[int],
        answer: Sequence[int],
        arrival_ns: int,
        finished_ns: int,
        images: Sequence[str] = (),
    ) -> Place:
        """The place of a finished request; call it in the order in which they were finished."""
        asked = tuple(prompt)
        same = hash(asked)
        blocks = self._blocks.get(same)  # answers to one prompt come together
        if blocks is None:
            if len(self._blocks) > MOST_PROMPTS:
                self._blocks.clear()
            blocks = self._blocks[same] = _hashes(0, asked)
        chain, rest = blocks
        before = self._before(chain, asked, arrival_ns)
        if before is None:
            seen = zlib.crc32("\n".join(images).encode()) if images else 0
            found = Place(hash((chain[-1], rest, seen)), 1, None)
        else:
            found = Place(before.group, before.turn + 1, before.first)
        if answer:
            ends, left = _hashes(chain[-1], (*rest, *(answer[:-1] or answer)))
            self._keep(ends[-1], left, _Ended(found.first or name, found.group, found.turn, finished_ns))
        return found

    def _before(self, chain: Sequence[int], prompt: tuple[int, ...], arrival_ns: int) -> _Ended | None:
        """The longest answer with which a prompt begins; of equal ones the newest."""
        for blocks in range(len(chain) - 1, -1, -1):
            endings = self._ended.get(chain[blocks])
            if endings is None:
                continue
            begin = blocks * BLOCK
            for length in range(min(BLOCK, len(prompt) - begin) - 1, -1, -1):
                same = endings.get(prompt[begin : begin + length])
                if same and same[-1].finished_ns <= arrival_ns + _CLOCKS_NS:
                    return same.pop() if len(same) > 1 else same[0]
        return None

    def _keep(self, key: int, left: tuple[int, ...], ended: _Ended) -> None:
        self._ended.setdefault(key, {}).setdefault(left, []).append(ended)
        self._order.append((key, left))
        if len(self._order) > MOST_ENDED:
            key, left = self._order.popleft()
            endings = self._ended.get(key, {})
            same = endings.get(left, [])
            del same[:1]
            if not same:
                endings.pop(left, None)
            if not endings:
                self._ended.pop(key, None)


def _hashes(begin: int, tokens: tuple[int, ...]) -> tuple[list[int], tuple[int, ...]]:
    """After each whole block, the hash of all before it, and the tokens after the last one; hashes of
    integers are the same in every process.
    """
    found, place = [begin], 0
    for place in range(BLOCK, len(tokens) + 1, BLOCK):
        begin = hash((begin, tokens[place - BLOCK : place]))
        found.append(begin)
    return found, tokens[place:]
