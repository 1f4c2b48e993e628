"""What a GPU can do at most, by its name: the makers' data sheets."""

from __future__ import annotations

import re
from typing import NamedTuple


class GpuPeak(NamedTuple):
    """Dense BF16 (and FP16) matrix multiplication, and its memory."""

    tflops: float
    tb_per_s: float


# NVIDIA's sheets give tensor throughput "with sparsity" for these; dense is half of it. A name that is not
# here has no peak: for MFU it is told with `--peak-tflops`.
# (name as CUDA or HIP gives it, dense BF16 TFLOP/s, memory in TB/s, data sheet)
PEAKS: tuple[tuple[str, float, float, str], ...] = (
    (r"GB[23]00", 2500.0, 8.0, "NVIDIA GB200 NVL72, GB300 NVL72"),
    (r"\bB[23]00", 2250.0, 8.0, "NVIDIA HGX B200, HGX B300"),
    (r"H200 NVL", 835.5, 4.8, "NVIDIA H200 NVL"),
    (r"H100 NVL", 835.5, 3.9, "NVIDIA H100 NVL"),
    (r"H[18]00 PCIe", 756.5, 2.0, "NVIDIA H100 PCIe"),
    (r"GH200 144G", 989.4, 4.9, "NVIDIA GH200 with HBM3e"),
    (r"GH200", 989.4, 4.0, "NVIDIA GH200"),
    (r"H200", 989.4, 4.8, "NVIDIA H200 SXM"),
    (r"H[18]00", 989.4, 3.35, "NVIDIA H100 SXM"),
    (r"\bH20\b", 148.0, 4.0, "NVIDIA H20"),
    (r"A[18]00.*PCIe.*80GB|A[18]00 80GB PCIe", 312.0, 1.935, "NVIDIA A100 80GB PCIe, A800"),
    (r"A[18]00.*80GB", 312.0, 2.039, "NVIDIA A100 80GB SXM, A800"),
    (r"A[18]00", 312.0, 1.555, "NVIDIA A100 40GB, A800"),
    (r"\bA30\b", 165.0, 0.933, "NVIDIA A30"),
    (r"\bA40\b", 149.7, 0.696, "NVIDIA A40"),
    (r"\bL40S\b", 362.05, 0.864, "NVIDIA L40S"),
    (r"\bL40\b", 181.05, 0.864, "NVIDIA L40"),
    (r"\bL4\b", 121.0, 0.3, "NVIDIA L4"),
    (r"MI355X", 2516.6, 8.0, "AMD Instinct MI355X"),
    (r"MI350X", 2306.9, 8.0, "AMD Instinct MI350X"),
    (r"MI325X", 1307.4, 6.0, "AMD Instinct MI325X"),
    (r"MI300X", 1307.4, 5.3, "AMD Instinct MI300X"),
    (r"MI300A", 980.6, 5.3, "AMD Instinct MI300A"),
    (r"MI250X", 191.5, 1.638, "AMD Instinct MI250X, one of its two dies, which is one device"),
)
_COMPILED = tuple((re.compile(pattern), GpuPeak(tflops, memory)) for pattern, tflops, memory, _ in PEAKS)


def gpu_peak(name: str) -> GpuPeak | None:
    """The peak of a GPU by its name; None where it is not known."""
    return next((peak for pattern, peak in _COMPILED if pattern.search(name)), None)
