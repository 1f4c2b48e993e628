"""Keeps secrets out of every file we write: values of variables that are named like one, also inside a
command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

MASK = "***"
_NAME = r"[A-Za-z0-9_.-]*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?"
_SECRET_NAME = re.compile(rf"(?i){_NAME}$")
_ASSIGNED = re.compile(
    rf"(?i)(?P<name>{_NAME})(?P<sep>\s*[=:]\s*|\s+(?=[^-\s]))(?P<value>'[^']*'|\"[^\"]*\"|[^\s;&|'\"]+)"
)
_URL_LOGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/\s@:]*:[^/\s@]+@", re.IGNORECASE)
# Paths to secrets, switches and counts are no secrets themselves.
_HARMLESS = re.compile(r"(?i)(_PATH|_FILE|_DIR|MAX_?TOKENS?|NUM_?TOKENS?|TOKENS_PER.*|TOKENIZER.*)$")
_SHORTEST = 6


def is_secret_name(name: str) -> bool:
    """Whether a variable or option of this name holds a secret by its name."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS.search(name)


def redact_text(text: str, env: Mapping[str, str] | None = None) -> str:
    """`text` with the secrets of `env` (default: this process's) and inline `NAME=value` secrets as ***."""
    for name, value in (os.environ if env is None else env).items():
        if is_secret_name(name) and len(value) >= _SHORTEST:
            text = text.replace(value, MASK)

    def mask(match: re.Match[str]) -> str:
        return match[0] if not is_secret_name(match["name"]) else f"{match['name']}{match['sep']}{MASK}"

    return _URL_LOGIN.sub(rf"\g<scheme>{MASK}@", _ASSIGNED.sub(mask, text))
