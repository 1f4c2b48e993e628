"""Opening a page where a browser can be shown, and saying what to do where none can."""

from __future__ import annotations

import os
import sys


def browser_here() -> bool:
    """Whether a browser can be shown on this machine."""
    return sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )


def open_in_browser(url: str) -> None:
    """Opens a browser, or says what to do where there is none."""
    if browser_here():
        import webbrowser

        webbrowser.open(url)
    else:
        print(
            "--open: no browser can be shown here (DISPLAY is not set). `rlprof view JOB` serves the page and"
            " prints the ssh line; or copy report.html, one file, to your own machine.",
            file=sys.stderr,
        )
