"""Photographs the report of a run for README and the site: docs/images/report.png. `make screenshot` runs it
on a fresh demo.

python docs/screenshot.py RUN_FOLDER
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TARGET = Path(__file__).parent / "images" / "report.png"


def main() -> None:
    page = Path(sys.argv[1]).absolute() / "report.html"
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not page.is_file() or browser is None:
        sys.exit(f"{page} and a Chromium are needed")
    with tempfile.TemporaryDirectory() as profile:
        line = [
            browser,
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            "--disable-gpu",
            f"--user-data-dir={profile}",
            "--window-size=1240,1130",
            "--virtual-time-budget=5000",
            f"--screenshot={TARGET}",
            page.as_uri(),
        ]
        subprocess.run(line, check=True, timeout=120, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
