"""Every section of the five documents has rows in comparison.md beside this file, and what a row names is
there, its test included; docs/comparison.md counts them.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

from rlprof_ops.cli import cli

HOME = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("comparison.md")
PAGE = HOME / "docs" / "comparison.md"


SOURCES = [*(HOME / "python").rglob("*.py"), HOME / "ray.sub", *(HOME / "scripts").rglob("*.sh")]
# Every section of the five documents, as their headings are; the introduction is what stands before the
# first.
SECTIONS = {
    "NeMo RL: Profile GPU with Nsys": (
        "Profile GPU with Nsys (introduction)",
        "Prerequisites",
        "Configure the Environment Variables",
        "Pattern Format",
        "Supported Workers",
        "Example Usage",
        "Profile Output",
        "Analyze Profile Files",
        "How We Patched Nsight Support in Ray",
    ),
    "NeMo RL: Profiling with Torch Profiler": (
        "Profiling with Torch Profiler (introduction)",
        "Configure the Environment Variables",
        "Pattern format",
        "Analyze Profiling Traces",
        "Known Issues",
    ),
    "verl: Nsight Profiling": (
        "0. Prerequisites",
        "1. Global Profiling Control",
        "2. Profiling rank control",
        "3. Component-specific Profiling",
        "4. where to find the profiling data",
        "Usage Example",
        "Profiling Output",
        "Notes",
    ),
    "RLinf: GPU Profiling": (
        "GPU Profiling (introduction)",
        "How To Enable It",
        "Common Fields",
        "The enabled Flag",
        "Output Directory",
        "How To Override Worker Groups",
        "How To Profile Only Specific Training Steps",
        "Default Preset",
        "Overriding nsys profile Options",
        "Compute-Path NVTX Annotations",
        "Ad-Hoc Profiling Ranges",
        "AMD: Minimal Configuration",
        "AMD: Overriding rocprof-sys-python Arguments",
        "AMD: Injecting Environment Variables",
    ),
    "RLinf: PyTorch Profiler in Megatron": (
        "PyTorchProfilerFunc",
        "PyTorchProfiler",
        "Configuration",
        "Parameter Descriptions",
        "Function Details",
        "Important Considerations",
        "Results Usage",
    ),
}


def comparison() -> dict[str, list[list[str]]]:
    """The cells of every row of the comparison, by the heading above it."""
    found = {}
    for section in TABLE.read_text().split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
        found[heading] = rows[1:]  # the first names the columns
    return found


def collected(file: str) -> set[str]:
    """The tests that pytest collects from a file: its own functions called test_*."""
    tree = ast.parse((HOME / file).read_text())
    return {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_row_of_the_comparison_has_a_test():
    rows = [row for rows in comparison().values() for row in rows]
    assert len(rows) > 120
    for row in rows:
        named = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", row[-1])
        assert named, row
        assert named[2] in collected(named[1]), row


@pytest.mark.parametrize("document", SECTIONS)
def test_every_section_of_the_five_documents_has_its_rows(document):
    rows = comparison()[document]
    assert all(len(row) == 4 for row in rows), "in the document, feature, here, test"
    assert list(dict.fromkeys(row[0] for row in rows)) == list(SECTIONS[document])
    assert f"| {document} | {len(rows)} |" in TABLE.read_text(), "the number of rows at the top"
    assert f"| {document} | {len(rows)} |" in PAGE.read_text(), "the number of rows on the page for readers"


def test_what_a_row_names_as_its_place_is_there():
    """Commands by click; variables, names and options by the source; paths of this repository by the disk."""
    files = [*SOURCES, *(HOME / "env").glob("*.env")]
    source = "\n".join(path.stem + "\n" + path.read_text() for path in files)
    commands = set(cli.list_commands(click.Context(cli)))
    for row in (row for rows in comparison().values() for row in rows):
        for name in re.findall(r"`([^`]+)`", row[-2]):
            words = name.split()
            if words[0] == "rlprof" and len(words) > 1:
                assert words[1] in commands, name
            elif (HOME / name).exists():
                continue
            else:
                pieces = [
                    piece
                    for piece in re.split(r"[^\w.-]+", name)
                    if len(piece) > 2 and not piece.startswith("-")
                ]
                assert all(piece.strip(".").rpartition(".")[2] in source for piece in pieces), (
                    f"{name}: not in the source"
                )
