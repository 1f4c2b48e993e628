"""Whether nsys reads a report out of which secrets were taken."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from rlprof_ops.backends.nsight import nsys_cli, nsys_process
from rlprof_ops.words import limit

_OPEN_S = 60.0  # for nsys to open a masked copy


def why_unreadable(original: Path, masked: Path) -> str:
    """What nsys, where it is installed, says of the masked copy of a report that it can read; empty when both
    are alike.
    """
    if masked.name.endswith(nsys_cli.RAW_SUFFIX) or nsys_cli.find() is None:
        return ""
    why = _export_fails(masked)
    return why if why and not _export_fails(original) else ""


def _export_fails(report: Path) -> str:
    with tempfile.TemporaryDirectory(prefix="rlprof-masked-") as folder:
        name = Path(folder) / "report.nsys-rep"
        name.symlink_to(report.resolve())
        argv = [nsys_cli.find() or "nsys", "export", "--type=info", "--force-overwrite=true"]
        argv += [f"--output={folder}/info", str(name)]
        process = nsys_process.start(argv, folder)
        try:
            said, _ = process.communicate(timeout=_OPEN_S)
        except subprocess.TimeoutExpired:
            nsys_process.end_group(process)
            return f"no answer within {limit(_OPEN_S)}"
        return said.strip()[-200:] or f"exit code {process.returncode}" if process.returncode else ""
