"""The documentation site: it builds without a warning, its generated pages are the code's, and what it quotes exists."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
DOCS = HOME / "docs"
# First words of messages that others make; all other quoted messages are ours.
OTHERS = re.compile(r"^(Ray|Slurm|nsys|Ray's own): ")
FOREIGN = (
    "cannot open shared object file", "libtransformer_engine.so", "some worker processes have not registered within the timeout",
    "Qdstrm file is incomplete or invalid", "No space left on device", "worker_process_48213.3.nsys-rep", "/tmp/ray/session_latest/logs/nsight",
    "manifest.json", "report.html", "vllm_generation_worker",
)  # fmt: skip


def generator():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "knobs.md", "schemas.md"])
def test_generated_pages_are_those_of_the_code(name):
    assert (DOCS / name).read_text() == generator().pages()[name], f"docs/{name} is old: python docs/generate.py"


def test_the_site_builds_without_a_warning_and_asks_nothing_of_the_network(tmp_path):
    pytest.importorskip("material")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(HOME / "mkdocs.yml"), "-d", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, cwd=HOME)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "index.html").read_text()
    loads = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(https?:[^\"' >]+)", page)
    assert loads == []
    assert (tmp_path / "search" / "search_index.json").stat().st_size > 10_000


def test_quoted_messages_are_in_the_source():
    source = "\n".join(path.read_text() for path in sources())
    source = re.sub(r"[\"']\s*\n\s*(?:rf|f|r)?[\"']", "", source)  # a message on two lines is one message
    quoted = [message for cell in symptoms() for message in re.findall(r"`([^`]+)`", cell)]
    ours = [message for message in quoted if message not in FOREIGN]
    assert len(ours) > 25
    assert [message for message in ours if message not in source] == []


def symptoms() -> list[str]:
    """The first cell of each row of the tables of troubleshooting.md, without those that quote somebody else."""
    rows = re.findall(r"^\| (.+?) \| .+ \|$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    return [row for row in rows if not OTHERS.match(row) and set(row) != {"-"}]


def sources() -> list[Path]:
    return [*(HOME / "python").rglob("*.py"), HOME / "ray.sub", *(HOME / "scripts").rglob("*.sh")]


def rows_of_the_comparison() -> list[tuple[str, str, str]]:
    rows = re.findall(r"^\| (.+?) \| (.+) \| `(tests/[^`]+)` \|$", (DOCS / "comparison.md").read_text(), re.MULTILINE)
    return [(feature, here, test) for feature, here, test in rows]


def test_every_row_of_the_comparison_has_a_test_that_exists():
    text = (DOCS / "comparison.md").read_text()
    rows = rows_of_the_comparison()
    features = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| feature")]
    assert len(rows) == len(features) > 80, "a row without a test"
    for feature, _, test in rows:
        file, _, name = test.partition("::")
        source = (HOME / file).read_text()
        assert not name or f"def {name}(" in source, f"{feature}: {test}"


@pytest.mark.parametrize("part, least", [
    ("NeMo RL: Profile GPU with Nsys", 20), ("NeMo RL: Torch Profiler", 8), ("verl: Nsight Profiling", 15), ("RLinf: GPU Profiling", 20),
    ("RLinf: PyTorchProfiler for Megatron", 10),
])  # fmt: skip
def test_each_of_the_five_documents_has_its_part(part, least):
    section = (DOCS / "comparison.md").read_text().partition(f"## {part}\n")[2].partition("\n## ")[0]
    assert section.count("\n| ") >= least
