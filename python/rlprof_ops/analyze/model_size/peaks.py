"""What a GPU can do at most: dense BF16 matrix multiplication, in TFLOP/s, as its maker's data sheet says.

NVIDIA's sheets give tensor throughput "with sparsity" for these; dense is half of it. A name that is not here
has no peak: it is told with `--peak-tflops`.
"""

from __future__ import annotations

import re

# (name as CUDA or HIP gives it, dense BF16 TFLOP/s, data sheet)
PEAKS: tuple[tuple[str, float, str], ...] = (
    (r"GB[23]00", 2500.0, "NVIDIA GB200 NVL72, GB300 NVL72"),
    (r"\bB[23]00", 2250.0, "NVIDIA HGX B200, HGX B300"),
    (r"H[12]00 NVL", 835.5, "NVIDIA H100 NVL, H200 NVL"),
    (r"H[18]00 PCIe", 756.5, "NVIDIA H100 PCIe"),
    (r"GH200|H[128]00", 989.4, "NVIDIA H100 SXM, H200 SXM, GH200"),
    (r"\bH20\b", 148.0, "NVIDIA H20"),
    (r"A[18]00", 312.0, "NVIDIA A100, A800"),
    (r"\bA30\b", 165.0, "NVIDIA A30"),
    (r"\bA40\b", 149.7, "NVIDIA A40"),
    (r"\bL40S\b", 362.05, "NVIDIA L40S"),
    (r"\bL40\b", 181.05, "NVIDIA L40"),
    (r"\bL4\b", 121.0, "NVIDIA L4"),
    (r"MI355X", 2516.6, "AMD Instinct MI355X"),
    (r"MI350X", 2306.9, "AMD Instinct MI350X"),
    (r"MI3(00|25)X", 1307.4, "AMD Instinct MI300X, MI325X"),
    (r"MI300A", 980.6, "AMD Instinct MI300A"),
    (r"MI250X", 191.5, "AMD Instinct MI250X, one of its two dies, which is one device"),
)
_COMPILED = tuple((re.compile(pattern), peak) for pattern, peak, _ in PEAKS)


def peak_tflops(name: str) -> float | None:
    """Dense BF16 TFLOP/s of a GPU by its name; None where it is not known."""
    return next((peak for pattern, peak in _COMPILED if pattern.search(name)), None)
