"""One command line of rlprof in this process, with a deadline: what it ends with and all that it says."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops import cli

DEADLINE_S = 60


class Late(BaseException):
    """A command took longer than its deadline."""


@dataclass(frozen=True)
class Ended:
    """`code` is the exit code, "late" past the deadline, "traceback" for an exception that nobody caught."""

    code: object
    said: str


def run_command(
    words: tuple[str, ...], here: Path, deadline_s: int = DEADLINE_S, encoding: str = "utf-8"
) -> Ended:
    """Run one command in the folder `here`. Standard output takes what is valid in `encoding` alone, as a
    terminal's does.
    """
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", write_through=True)
    err = io.StringIO()
    code: object = 0
    before = os.getcwd()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            os.chdir(here)
            with _deadline(deadline_s):
                cli.main(list(words))
        except SystemExit as end:
            code = end.code or 0
        except Late:
            code = "late"
        except BaseException:
            traceback.print_exc(file=err)
            code = "traceback"
        finally:
            os.chdir(before)
    out.flush()
    return Ended(code, out.buffer.getvalue().decode(errors="replace") + err.getvalue())


@contextlib.contextmanager
def _deadline(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":  # command lines as JSON come in, what each ended with goes out
    ends = [run_command(tuple(words), Path(), encoding=sys.stdout.encoding) for words in json.load(sys.stdin)]
    json.dump([(ended.code, ended.said) for ended in ends], sys.stdout)
