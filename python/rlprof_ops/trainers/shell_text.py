"""Launch scripts as far as profiling needs them: the variables that they set and the words of their
commands.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from rlprof_ops.request.problems import Problem, RequestError

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^{}]*))?\})", re.ASCII)
_STARTS = "set [-+]|export |cd |source |python|uv |torchrun |bash |sh |ray |sbatch |srun |nohup "
_SCRIPT = re.compile(rf"#!|({_STARTS}|[A-Za-z_]\w*=)")
_OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w./@-]*\.[\w./@-]+=", re.ASCII)
NESTED = ("COMMAND",)  # variables of ray.sub whose value is a command line of its own
_ENDS = set(";&|()<>\n")


@dataclass
class Script:
    """`variables` as they are at the end of the script, `words` of all commands, in their order."""

    variables: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)


def looks_like_script(text: str) -> bool:
    """Whether text is shell rather than YAML: told by its first line that is no comment."""
    if text.startswith("#!"):
        return True
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            return _SCRIPT.match(line) is not None and not _OVERRIDE.match(line)
    return False


def read_script(text: str, name: str) -> Script:
    """Read a script, a command line or assignments.

    `$NAME` and `${NAME:-default}` are replaced where the script itself sets NAME; what only the shell
    knows stays as it is written.

    Raises:
        RequestError: a quote is not closed.
    """
    script = Script()
    at_start = True
    try:
        lexer = shlex.shlex(
            _without_comments(text).replace("\\\n", " "), posix=True, punctuation_chars=";&|()<>\n"
        )
        lexer.whitespace = " \t\r"
        lexer.whitespace_split = True
        lexer.commenters = ""
        tokens = list(iter(lexer.get_token, None))
    except ValueError as error:
        raise RequestError([Problem(f"the shell cannot read these lines: {error}", name)]) from None
    for token in tokens:
        if set(token) <= _ENDS:
            at_start = True
            continue
        word = expand(token, script.variables)
        match = _ASSIGNMENT.fullmatch(word)
        if match and (at_start or match[1].isupper()):
            script.variables[match[1]] = match[2]
            if match[1] in NESTED:
                inner = read_script(match[2], name)
                script.variables |= inner.variables
                script.words += inner.words
            continue
        at_start = at_start and word in ("export", "env", "declare", "local", "readonly")
        script.words.append(word)
    return script


def _without_comments(text: str) -> str:
    """Text without its comments. `#` begins one at a word's start and outside quotes alone, which shlex
    does not
    tell, and a comment may have an apostrophe.
    """
    kept: list[str] = []
    quote, at = "", 0
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'":
            kept.append(text[at : at + 2])
            at += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (at == 0 or text[at - 1] in " \t\n;&|()"):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        kept.append(char)
        at += 1
    return "".join(kept)


def expand(word: str, variables: dict[str, str]) -> str:
    """A word with the variables that are known put in."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name in variables:
            return variables[name]
        return match[3] if match[3] is not None else match[0]

    return _REFERENCE.sub(value, word)
