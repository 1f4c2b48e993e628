"""The report as Markdown, read by a parser that is not ours."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from tests.analyze.as_data import typed
from tests.analyze.simulated import simulated_answer

pytest.importorskip("rich")
from markdown_it import MarkdownIt

from rlprof_ops.analyze.output.markdown import WIDEST_NAME, markdown

HOSTILE = "k<img src=x onerror=alert(1)>|[a](javascript:b)*`\n# c"


class Page(HTMLParser):
    """The tags of a page, and the text of its table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data.removesuffix("\n")


def test_names_of_a_trace_are_text_and_numbers_are_the_answers():
    answer = simulated_answer(2, 3, slow_rank=1)
    answer["kernels"][0]["name"] = HOSTILE
    answer["run"] |= {"versions": {"torch": "2.13.0"}, "framework": "verl", "path": "/home/someone/run"}
    answer["coverage"]["missing"] = [
        {"capture": "nsight/a/rank0/step3-3", "state": "missing", "reason": "HF_TOKEN=hf_" + "a1B2" * 9}
    ]
    text = markdown(typed(answer))
    page = Page(text)

    assert not page.tags & {"img", "a", "pre", "h1"}
    assert " ".join(HOSTILE.split())[:WIDEST_NAME] in page.cells
    assert {row["worker"] for row in answer["phases"]} <= set(page.cells)
    for finding in answer["findings"]:
        assert f"(`{finding['kind']}`)" in text
    assert "hf_a1B2" not in text and "nsight/a/rank0/step3-3: missing" in text
    assert "- torch 2.13.0" in text and "- framework verl" in text and "/home/someone" not in text
