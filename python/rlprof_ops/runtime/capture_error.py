"""The one way in which taking a capture fails."""

from __future__ import annotations


class CaptureError(Exception):
    """A capture could not be taken; the text is the reason that the manifest will show."""


class Yielded(CaptureError):
    """Ours did not open, since something of the program's own was first; the window's next step may try."""
