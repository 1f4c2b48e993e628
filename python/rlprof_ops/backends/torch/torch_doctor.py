"""torch on a node: there, and seeing its GPUs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from rlprof_ops.check_result import FAIL, OK, WARN, CheckResult, last_line, output
from rlprof_ops.extras import installed_version
from rlprof_ops.host.gpus import has_gpu

_TORCH = """
import json, torch
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
                  "devices": torch.cuda.device_count(), "kineto": torch.profiler.kineto_available()}))
"""


def findings(quick: bool = False) -> Iterator[CheckResult]:
    """Whether torch is here and sees the GPUs; `quick` does not load it."""
    if quick:
        return
    version = installed_version("torch")
    if version is None:
        yield CheckResult("torch", WARN, "not installed", "needed for torch and memory captures only")
        return
    code, text = output([sys.executable, "-c", _TORCH], seconds=120)
    try:
        facts = json.loads(last_line(text)) if code == 0 else None
    except ValueError:
        facts = None
    if facts is None:
        yield CheckResult(
            "torch",
            FAIL,
            f"{version} does not import: {last_line(text)}",
            "repair the environment of RLPROF_VENV",
        )
        return
    build = (
        f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "CPU only"
    )
    said = f"{facts['version']}, {build}, {facts['devices']} GPUs seen"
    wrong = (facts["cuda"] or facts["hip"]) and not facts["devices"] and has_gpu()
    yield CheckResult(
        "torch",
        WARN if wrong else OK,
        said,
        "this node has a GPU that torch does not see: compare driver and build" if wrong else "",
    )
