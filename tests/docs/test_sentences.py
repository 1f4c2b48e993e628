"""No sentence of a page is longer than LIMIT words, and the tutorial's session leaves out what repeats."""

from __future__ import annotations

import re

import pytest
from tests.docs.typed import DOCUMENTS, HOME, Document
from tests.operate.login import in_document, shape, shortened

LIMIT = 40
MADE = {"faults.md", "schemas.md"}  # of messages of a job, and of a schema's descriptions
PAGES = [
    Document(HOME / "CONTRIBUTING.md", (HOME / "CONTRIBUTING.md").read_text(encoding="utf-8")),
    *(page for page in DOCUMENTS if page.name not in MADE),
]
_FENCED = re.compile(r"^ *```.*?^ *```|<!--.*?-->", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"\s*(?:[-*>]|\d+\.) ")
_END = re.compile(r"(?<=[.!?])[)\"'`*]*\s+")


def blocks(text: str) -> list[str]:
    """Paragraphs, list items, table cells and headings; code and the targets of links are left out."""
    found, running = list[str](), False
    for line in _FENCED.sub("\n", re.sub(r"\]\([^)]*\)", "]", text)).splitlines():
        words, begins = line.strip(), bool(_ITEM.match(line))
        if not words or words.startswith(("#", "|")) or (line.startswith("    ") and not (running or begins)):
            running = False
            found += words.split("|") if words.startswith("|") else []
        elif running and not begins:
            found[-1] += " " + words
        else:
            running = True
            found.append(words)
    return found


def words(sentence: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_sentence_is_short(page: Document) -> None:
    every = [sentence for block in blocks(page.text) for sentence in _END.split(block)]
    assert len(every) > 5
    assert [sentence for sentence in every if words(sentence) > LIMIT] == []


def test_the_tutorials_session_leaves_out_what_repeats() -> None:
    session = in_document(HOME / "docs" / "tutorial.md")
    assert shortened(session) == session
    row = "".join(f"21:02:{second} job 2: step {second}\n" for second in range(10, 30))
    short = shortened(f"$ rlprof plan\n{row}2 captures planned: 2 ok\n")
    assert short.count("\n") == 12
    assert shape(short) == ["$ rlprof plan", "2 captures planned: 2 ok"]
