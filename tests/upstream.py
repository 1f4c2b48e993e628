"""The trainers' own sources, unpacked once, and pieces of them to execute."""

from __future__ import annotations

import ast
import fcntl
import functools
import importlib.util
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

VERL = ("v0.4.1", "v0.5.0", "v0.6.1", "v0.7.0", "b178a3cd5")


def archives() -> Path:
    """The folder of the archives: $RLPROF_UPSTREAM, else `../shared/upstream` beside the checkout."""
    named = os.environ.get("RLPROF_UPSTREAM")
    return Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "upstream"


def missing() -> str:
    """Why the sources cannot be used; empty when they can."""
    folder = archives()
    absent = [
        name for name in ("nemo_rl", "rlinf", "verl_config") if not list(folder.glob(f"{name}-*.tar.xz"))
    ]
    if not absent:
        return ""
    return f"no {', '.join(absent)} archive in {folder}; set RLPROF_UPSTREAM to the folder of the archives"


@functools.cache
def tree(name: str) -> Path:
    """The unpacked archive `<name>-*.tar.xz`, e.g. `nemo_rl`, `rlinf`, `verl_config-v0.6.1`."""
    (archive,) = archives().glob(f"{name}*.tar.xz")
    stat = archive.stat()
    root = Path(tempfile.gettempdir()) / f"rlprof-upstream-{os.getuid()}" / f"{archive.stem}-{stat.st_size}"
    root.parent.mkdir(mode=0o700, exist_ok=True)
    with (root.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / ".done").exists():
            unpack(archive, root)
            (root / ".done").touch()
    (inner,) = (path for path in root.iterdir() if path.is_dir())
    return inner


def unpack(archive: Path, folder: Path) -> None:
    """Also by a Python before 3.11.4, as Debian 12's, whose tarfile knows no filter."""
    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as packed:
        packed.extractall(folder, **safely)


def verl(version: str) -> Path:
    """verl's excerpt of one version."""
    return tree(f"verl_config-{version}")


def module(path: Path, name: str, **stubs: ModuleType) -> ModuleType:
    """A real module executed from its file; `stubs` stand for packages that it imports and a test has not."""
    before = {key: sys.modules.get(key) for key in stubs}
    sys.modules.update(stubs)
    try:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules[name] = made
        spec.loader.exec_module(made)
    finally:
        for key, value in before.items():
            if value is None:
                sys.modules.pop(key, None)
            else:
                sys.modules[key] = value
    return made


def definitions(path: Path, *names: str, **context: Any) -> dict[str, Any]:
    """Functions and classes of a real source, executed without the imports of their module.

    A dotted name is a method, given as a plain function without its class.
    """
    source = ast.parse(path.read_text(encoding="utf-8"))
    space = dict(context)
    for name in names:
        body: list[ast.stmt] = source.body
        for part in name.split("."):
            node = next(n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == part)
            body = node.body
        future = ast.parse("from __future__ import annotations").body
        exec(compile(ast.Module([*future, node], []), str(path), "exec"), space)
    return space
