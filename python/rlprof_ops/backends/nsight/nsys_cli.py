"""The command `nsys`: how a session is started and stopped, what it says, and whether a report is whole."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.backends.contract import OK, TRUNCATED, Check, Options, check_not_empty
from rlprof_ops.backends.nsight.nsys_options import GPU_METRICS, split_options
from rlprof_ops.backends.nsight.nsys_options import RAW_SUFFIX as RAW_SUFFIX
from rlprof_ops.backends.nsight.nsys_options import SUFFIX as SUFFIX

# `nsys stop` takes 0.7 s for a small window; one of gigabytes takes minutes to write.
STOP_TIMEOUT_S = 600.0


def start_argv(
    session: str, output: str | os.PathLike[str], spec: Options | None, gpu_metrics: bool = True
) -> list[str]:
    """`nsys start …`: opens a window that will be written to `output`. Without `gpu_metrics` it samples none,
    whatever the request says.
    """
    nsys = find() or "nsys"
    words = split_options(spec, nsys=nsys if spec and "preset" in spec.options else "").start
    return [
        nsys,
        "start",
        f"--session={session}",
        "-o",
        os.fspath(output),
        *(word for word in words if gpu_metrics or not word.startswith(GPU_METRICS)),
    ]


def stop_argv(session: str) -> list[str]:
    """`nsys stop …`: closes the window within 0.1 s; the report is there when it returns."""
    return [find() or "nsys", "stop", f"--session={session}"]


def list_argv() -> list[str]:
    """`nsys sessions list`: what `session_states` reads."""
    return [find() or "nsys", "sessions", "list"]


def session_states(listing: str) -> dict[str, str]:
    """State by name in the text of `nsys sessions list`, e.g. {"rlprof-4711-policy_worker-r0-12":
    "Collection"}.
    """
    return {
        match["name"]: match["state"] for match in map(_SESSION_LINE.match, listing.splitlines()) if match
    }


def traces_cuda(spec: Options) -> bool:
    """Whether this capture uses CUPTI on a node with a GPU; a process can give it to one profiler only."""
    launch = split_options(spec, driver=True).launch
    for token, following in zip(launch, [*launch[1:], ""], strict=True):
        value = (
            following if token == "-t" else token.partition("=")[2] if token.startswith("--trace=") else ""
        )
        if any(part.strip().startswith(("cuda", "cublas", "cudnn")) for part in value.split(",")):
            return True
    return False


def find(env: Mapping[str, str] | None = None) -> str | None:
    """The nsys to use: `RLPROF_NSYS` when set (even if wrong: it is named in the error), else `nsys` from
    PATH.
    """
    env = os.environ if env is None else env
    chosen = env.get(env_names.NSYS)
    found = shutil.which(chosen) if chosen else shutil.which("nsys", path=env.get("PATH"))
    return found and os.path.abspath(found)  # it runs in another folder


# Columns: id, time, state, launch, name (nsys 2023.4).
_SESSION_LINE = re.compile(r"^\s*\d+\s+\S+\s+(?P<state>\S+)\s+\S+\s+(?P<name>\S+)\s*$")
# States in which what a process does still enters the report (2023.4 says "Collection").
COLLECTING = ("Collection", "Collecting", "DelayedCollection")


def why_missing(env: Mapping[str, str]) -> str:
    """What `find` looked at in vain."""
    chosen = env.get(env_names.NSYS)
    return f"RLPROF_NSYS={chosen!r} is no program" if chosen else "it is not on PATH"


_INJECTED = ("NVTX_INJECTION", "CUDA_INJECTION", "QUADD_", "NSYS_")


def client_env(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without what `nsys launch` put into the worker, for nsys commands that the worker itself runs.

    A client that kept them would load the injection libraries and be recorded as part of the training.
    """
    kept = {key: value for key, value in env.items() if not key.startswith(_INJECTED)}
    preload = [
        lib
        for lib in _split_preload(kept.pop("LD_PRELOAD", ""))
        if "ToolsInjection" not in lib and "KeyboardInterceptor" not in lib
    ]
    if preload:
        kept["LD_PRELOAD"] = ":".join(preload)
    return kept


def _split_preload(value: str) -> Iterable[str]:
    return (lib for lib in value.replace(" ", ":").split(":") if lib)


def generated_path(stdout: str, suffix: str = SUFFIX) -> str | None:
    """The report that `nsys stop` says it wrote: nsys exits 0 also when it had to write elsewhere than asked.

    With `RAW_SUFFIX` the raw capture, which is all there is when its own import failed (2023.4 does that now
    and then).
    """
    lines = stdout.splitlines()
    for index, line in enumerate(lines):
        if line.strip() == "Generated:":
            paths = [path.strip() for path in lines[index + 1 :] if path.strip()]
            return next((path for path in paths if path.endswith(suffix)), None)
    return None


def find_importer(env: Mapping[str, str] | None = None) -> Path | None:
    """QdstrmImporter of the nsys in use: it lies beside nsys's real file, in `host-linux-*`, or one or two
    folders up.
    """
    nsys = find(env)
    if nsys is None:
        return None
    here = Path(nsys).resolve().parent
    for folder in (here, here.parent, here.parent.parent):
        for candidate in sorted(folder.glob("host-linux-*/QdstrmImporter")):
            return candidate
        if (folder / "QdstrmImporter").exists():
            return folder / "QdstrmImporter"
    return None


def import_argv(importer: Path, raw: Path, report: Path) -> list[str]:
    """Turns a raw capture into a report."""
    return [str(importer), "-i", str(raw), "-o", str(report)]


_MAGIC = b"NVIDIA Tegra Profiler Report"
_TRAILER = b"[END]"


def check(path: Path) -> Check:
    """Whether an `.nsys-rep` has its first and last bytes (nsys 2022.4 to 2023.4 end a file with "[END]").

    It says nothing of the contents: that takes an export.
    """
    found = check_not_empty(path)
    if found:
        return found
    if path.name.endswith(RAW_SUFFIX):
        return Check(
            TRUNCATED, "raw capture that was not imported yet: run QdstrmImporter or `rlprof harvest`"
        )
    with path.open("rb") as report:
        head = report.read(len(_MAGIC))
        size_bytes = report.seek(0, os.SEEK_END)
        report.seek(max(0, size_bytes - len(_TRAILER)))
        tail = report.read()
    details = {"size_bytes": size_bytes}
    if head != _MAGIC:
        return Check(TRUNCATED, "does not begin like an nsys report", details)
    if tail != _TRAILER:
        return Check(TRUNCATED, "does not end like an nsys report: it was cut while written", details)
    return Check(OK, details=details)
