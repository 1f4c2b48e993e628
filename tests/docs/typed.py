"""The command lines of the documents, as somebody types them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

HOME = Path(__file__).parents[2]
DOCS = HOME / "docs"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELLS = ("bash", "console", "sh")
_STARTS = re.compile(
    r"^(?:[A-Z][A-Z_0-9]+=\S|(?:rlprof|sbatch|srun|scancel|torchrun|python3?|make|export|ssh|scp|eval) )"
)


@dataclass(frozen=True)
class Document:
    """A page of the docs, or README; one that only the site has is no file."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        return self.path.name


def generator() -> ModuleType:
    """docs/generate.py"""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _documents() -> Iterator[Document]:
    for path in (HOME / "README.md", *sorted(DOCS.rglob("*.md"))):
        yield Document(path, path.read_text(encoding="utf-8"))
    for name, text in generator().built_pages().items():
        yield Document(DOCS / name, text)


DOCUMENTS = list(_documents())


def lines(text: str) -> list[str]:
    """Every command of a document: of its shell blocks (in a session, what follows `$ `), of indented blocks
    that hold commands, and the example that a command's help gives. Continued lines are one.
    """
    found = []
    for language, block in _FENCE.findall(text):
        if language in _SHELLS:
            session = re.findall(r"^\$ (.*(?:\\\n.*)*)", block, re.MULTILINE)
            found += session if session else _joined(block)
        else:
            found += re.findall(r"^Example: (rlprof .*)", block, re.MULTILINE)
    for block in re.findall(r"(?:^    .*\n)+", _FENCE.sub("", text), re.MULTILINE):
        found += [line for line in _joined(block) if _STARTS.match(line)]
    return [line.replace("\\\n", " ").strip() for line in found]


def _joined(block: str) -> list[str]:
    whole = [line.strip().removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in whole if line and not line.startswith("#")]
