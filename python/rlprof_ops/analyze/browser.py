"""Opening a page where a browser can be shown, and saying what to do where none can."""

from __future__ import annotations

import getpass
import os
import socket
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
            "--open: no browser can be shown here (DISPLAY is not set). `rlprof report --serve JOB` serves"
            " the page and prints the ssh line; or copy report.html, one file, to your own machine.",
            file=sys.stderr,
        )


def advice(port: int, url: str) -> list[str]:
    """What to type where, for one who sits at this machine, or at another."""
    host = socket.gethostname()
    user = getpass.getuser()
    forward = f"ssh -N -L 127.0.0.1:{port}:127.0.0.1:{port}"
    login = os.environ.get("SLURM_SUBMIT_HOST", "")
    inside = bool(os.environ.get("SLURM_JOB_ID")) and login not in ("", host)
    line = f"{forward} -J {user}@{login} {user}@{host}" if inside else f"{forward} {user}@{host}"
    return [
        f"Serving on 127.0.0.1:{port} of {host}, for whoever has this address, until Ctrl-C:",
        f"  {url}",
        "From another machine, type this there first (host names as you log in with), then open the address:",
        f"  {line}",
    ]
