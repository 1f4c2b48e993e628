"""Every section of the five documents has rows in statements.md beside this file, and what a row names is
there: its place in the source, and its tests among those that pytest collects.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click
import pytest

from rlprof_ops.cli import cli

HOME = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("statements.md")
PAGE = HOME / "docs" / "comparison.md"
KEPT = ("yes", "other", "partly")
TEST = re.compile(r"`(tests/[\w/]+\.py::test_\w+)`")

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


def table() -> dict[str, list[list[str]]]:
    """The cells of every row of the table, by the heading above it."""
    found = {}
    for section in TABLE.read_text().split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
        found[heading] = rows[1:]  # the first names the columns
    return found


def rows() -> list[list[str]]:
    return [row for rows in table().values() for row in rows]


def named_tests(row: list[str]) -> list[str]:
    return TEST.findall(row[-1])


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """What pytest itself collects from the files that the table names, in every tier, without parameters."""
    files = sorted({test.partition("::")[0] for row in rows() for test in named_tests(row)})
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RLPROF_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", *files],
        cwd=HOME, env=kept | {"RLPROF_TESTS": "long", "RLPROF_TESTS_REQUIRE": "trainers"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    return {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.whole  # it collects from seventy files
def test_every_row_has_tests_that_pytest_collects(collected: set[str]) -> None:
    assert len(rows()) > 200
    for row in rows():
        assert named_tests(row) and not TEST.sub("", row[-1]).strip(), row
        assert set(named_tests(row)) <= collected, row


@pytest.mark.parametrize("document", SECTIONS)
def test_every_section_of_the_five_documents_has_its_rows(document: str) -> None:
    said = table()[document]
    assert all(len(row) == 5 and row[2] in KEPT for row in said), "in the document, statement, kept, …"
    assert list(dict.fromkeys(row[0] for row in said)) == list(SECTIONS[document])
    kept = Counter(row[2] for row in said)
    numbers = " | ".join(str(number) for number in (len(said), *(kept[how] for how in KEPT)))
    for counts in (TABLE, PAGE):
        assert f"| {document} | {numbers} |" in counts.read_text(), f"the numbers in {counts.name}: {numbers}"


def test_no_statement_is_kept_partly() -> None:
    """Such a row says what is missing: a statement becomes `yes` or `other` when that is built."""
    assert [row for row in rows() if row[2] == "partly"] == []


def test_what_a_row_names_as_its_place_is_there() -> None:
    """Commands by click; variables, names and options by the source; paths of this repository by the disk."""
    files = [*SOURCES, *(HOME / "env").glob("*.env")]
    source = "\n".join(path.stem + "\n" + path.read_text() for path in files)
    commands = set(cli.list_commands(click.Context(cli)))
    for row in rows():
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
