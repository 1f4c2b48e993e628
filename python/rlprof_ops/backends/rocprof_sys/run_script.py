"""Runs a Python script for `rlprof wrap` under rocprof-sys and notes its exit code, which rocprof-sys would
hide.

As a program: run_script.py EXIT_CODE_FILE (SCRIPT | -m MODULE) ARGUMENTS…
"""

from __future__ import annotations

import runpy
import sys
import traceback


def _run(words: list[str]) -> int:
    try:
        if words[0] == "-m":
            sys.argv[:] = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = words
            sys.path.insert(0, words[0].rpartition("/")[0] or ".")
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _path, _words = sys.argv[1], sys.argv[2:]
    _code = _run(_words)
    with open(_path, "w", encoding="ascii") as _file:
        _file.write(str(_code & 0xFF))
    sys.exit(_code)
