"""Actions behind real imports, in fresh interpreters: one finder for all, each told of each import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rlprof_ops.job.knobs import import_path

HEAD = """
import sys
from rlprof_ops.host.after_import import after_import
heard = []
def first(module): heard.append(("first", module.__name__))
def second(module): heard.append(("second", module.__name__))
"""


def run(folder: Path, code: str, **modules: str) -> tuple[str, str]:
    """What `code` prints on standard output and error, with these modules beside it."""
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{import_path()}:{folder}"},
        capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    return done.stdout.strip(), done.stderr.strip()


def test_several_actions_share_one_finder(tmp_path: Path) -> None:
    code = """
before = len(sys.meta_path)
for name in ("early", "late"):
    after_import(name, first); after_import(name, second); after_import(name, first)
import late, early
loaders = [type(loader).__name__ for loader in (early.__loader__, early.__spec__.loader)]
print(len(sys.meta_path) - before, heard, *loaders)
"""
    heard = [(word, name) for name in ("late", "early") for word in ("first", "second")]
    said = f"1 {heard} SourceFileLoader SourceFileLoader"
    assert run(tmp_path, code, early="", late="") == (said, "")


def test_a_module_that_is_there_is_told_at_once_and_again_when_loaded_anew(tmp_path: Path) -> None:
    code = "import there, importlib; after_import('there', first); print(heard)"
    code += "; importlib.reload(there); print(heard)"
    once = [("first", "there")]
    assert run(tmp_path, code, there="")[0].splitlines() == [str(once), str(once * 2)]


def test_who_asks_while_the_module_is_being_imported_is_told_at_its_end(tmp_path: Path) -> None:
    source = "import __main__; __main__.after_import('half', __main__.whole); WHOLE = True"
    code = "def whole(module): heard.append(module.WHOLE)\n"
    code += "after_import('half', first); import half; print(heard)"
    assert run(tmp_path, code, half=source) == ("[('first', 'half'), True]", "")


def test_what_an_action_raises_is_said_once_and_stays_there(tmp_path: Path) -> None:
    code = """
def wrong(module): raise ValueError("not this one")
after_import("known", wrong); after_import("known", second)
import known, importlib; importlib.reload(known); print(heard)
"""
    told, said = run(tmp_path, code, known="")
    assert told == str([("second", "known")] * 2)
    assert said.splitlines() == ["[rlprof] known: ValueError: not this one"]
