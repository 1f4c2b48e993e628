"""The documentation site: it builds without a warning, its generated pages are the code's, and what it
quotes exists.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.typed import DOCS, HOME, generator
from tests.needs import need
from tests.waits import wait_until

WINDOW = "--window-size=1400,900"
# First words of messages that others make; all other quoted messages are ours.
OTHERS = re.compile(r"^(Ray|Slurm|nsys|Ray's own): ")
FOREIGN = (
    "cannot open shared object file",
    "libtransformer_engine.so",
    "some worker processes have not registered within the timeout",
    "Qdstrm file is incomplete or invalid",
    "No space left on device",
    "worker_process_48213.3.nsys-rep",
    "/tmp/ray/session_latest/logs/nsight",
    "manifest.json",
    "report.html",
    "vllm_generation_worker",
)


def test_generated_pages_are_those_of_the_code():
    old = [name for name, text in generator().pages().items() if (DOCS / name).read_text() != text]
    assert not old, f"{old} are old: python docs/generate.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    line = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "-f",
        str(HOME / "mkdocs.yml"),
        "-d",
        str(folder),
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, cwd=HOME)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_without_a_warning_and_asks_nothing_of_the_network(site):
    page = (site / "index.html").read_text()
    loads = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(https?:[^\"' >]+)", page)
    assert loads == []
    assert (site / "search" / "search_index.json").stat().st_size > 10_000
    assert 'id="rlprof-report"' in (site / "cli.html").read_text()  # a page that is no file


@pytest.mark.chromium
def test_the_site_is_searched_from_a_folder_without_a_server(site, tmp_path):
    need("chromium")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", WINDOW):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path}")
    options.binary_location = shutil.which("chromium") or ""
    browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        browser.get((site / "tutorial.html").as_uri())
        box = browser.find_element("css selector", "input.md-search__input")
        box.click()
        box.send_keys("straggler")
        found = wait_until(
            lambda: browser.find_elements("css selector", ".md-search-result__item a"), pause_s=0.2
        )
        assert any("report.html" in (link.get_attribute("href") or "") for link in found)
    finally:
        browser.quit()


def test_quoted_messages_are_in_the_source():
    source = "\n".join(path.read_text() for path in sources())
    source = re.sub(r"[\"']\s*\n\s*(?:rf|f|r)?[\"']", "", source)  # a message on two lines is one message
    quoted = [message for cell in symptoms() for message in re.findall(r"`([^`]+)`", cell)]
    ours = [message for message in quoted if message not in FOREIGN]
    assert len(ours) > 25
    assert [message for message in ours if message not in source] == []


def symptoms() -> list[str]:
    """The first cell of each row of the tables of troubleshooting.md, without those that quote somebody
    else.
    """
    rows = re.findall(r"^\| (.+?) \| .+ \|$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    return [row for row in rows if not OTHERS.match(row) and set(row) != {"-"}]


def sources() -> list[Path]:
    return [*(HOME / "python").rglob("*.py"), HOME / "ray.sub", *(HOME / "scripts").rglob("*.sh")]
