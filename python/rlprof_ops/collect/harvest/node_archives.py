"""Packs what a node left into one `archives/<node>.tar.zst`: thousands of small files are slow to take
from a parallel file system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rlprof_ops.collect.harvest.manifest import FILE, Manifest
from rlprof_ops.errors import RlprofError
from rlprof_ops.host.contained_dir import ContainedDir, UnsafeName, safe_component

_UNKNOWN = "unknown-node"


def archive_nodes(run_dir: str | os.PathLike[str], manifest: Manifest) -> Iterator[tuple[str, int]]:
    """Write one archive a node and yield (path in the run folder, bytes). Nothing is removed.

    Raises:
        RlprofError: zstd is not installed or could not write.
    """
    zstd = shutil.which("zstd")
    if zstd is None:
        raise RlprofError("--archive needs the program zstd; install it, or run this where it is")
    with ContainedDir(run_dir) as run:
        for node, paths in sorted(_by_node(run, manifest).items()):
            yield _archive(run, zstd, node, paths)


def _by_node(run: ContainedDir, manifest: Manifest) -> dict[str, list[str]]:
    """Files by node: its reports, and whatever lies in a folder that has its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for report in manifest.reports:
        found[_node(report.node or report.host)].append(report.path)
    for top in ("nodes", "ray", "logs"):
        for path, _ in run.files(top):
            parts = path.split("/")
            if len(parts) > 2:
                found[_node(parts[1])].append(path)
            elif top == "nodes":
                found[_node(parts[1].removesuffix(".json"))].append(path)
    return {node: sorted(set(paths)) for node, paths in found.items()}


def _node(name: str | None) -> str:
    try:
        return safe_component(name or "", "node name")
    except UnsafeName:
        return _UNKNOWN


def _archive(run: ContainedDir, zstd: str, node: str, paths: list[str]) -> tuple[str, int]:
    place, temporary = f"archives/{node}.tar.zst", f"archives/.{node}-{os.getpid()}.tmp"
    out = run.open_write(temporary)
    try:
        with subprocess.Popen(
            [zstd, "-q", "-T0", "-c"], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE
        ) as packer:
            assert packer.stdin is not None and packer.stderr is not None
            try:
                with tarfile.open(
                    fileobj=packer.stdin,
                    mode="w|",
                    format=tarfile.PAX_FORMAT,
                    encoding="utf-8",
                    errors="surrogateescape",
                ) as tar:
                    for path in [*paths, FILE, "run.json"]:
                        _add(run, tar, path)
                packer.stdin.close()
            except BrokenPipeError:
                pass
            said = packer.stderr.read().decode(errors="replace").strip()
        if packer.returncode:
            raise RlprofError(
                f"{Path(run.root) / place}: zstd ended with exit code {packer.returncode}: {said}"
            )
        os.fsync(out)
        size_bytes = os.fstat(out).st_size
        run.rename(temporary, place)
    except BaseException:
        run.unlink(temporary)
        raise
    finally:
        os.close(out)
    return place, size_bytes


def _add(run: ContainedDir, tar: tarfile.TarFile, path: str) -> None:
    try:
        fd = run.open_read(path)
    except OSError:
        return  # gone since it was listed, or no regular file any more
    with os.fdopen(fd, "rb") as stream:
        info = tar.gettarinfo(arcname=path, fileobj=stream)
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        tar.addfile(info, stream)
