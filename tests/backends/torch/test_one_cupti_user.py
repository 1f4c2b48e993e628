"""nsys and torch's profiler in one process: CUPTI serves one of them, so the second is refused, with the
reason.
"""

import pytest

from rlprof_ops.backends.torch import trace_check as torch_backend
from rlprof_ops.request import CaptureSpec
from rlprof_ops.runtime.active_profiler import choose_recorder


def spec(backend, **options):
    return CaptureSpec(backend=backend, options=options)


@pytest.mark.parametrize(
    ("nsight", "session", "cuda", "refused"),
    [
        ({"t": "cuda,nvtx"}, "s1", True, True),
        ({"t": "nvtx"}, "s1", True, False),  # nsys leaves CUPTI alone
        ({"t": "cuda,nvtx"}, "", True, False),  # this process runs without nsys
        ({"t": "cuda,nvtx"}, "s1", False, False),  # and here nobody records CUDA
    ],
)
def test_torch_beside_an_nsys_that_traces_cuda_is_refused_with_the_reason(
    monkeypatch, nsight, session, cuda, refused
):
    monkeypatch.setenv("RLPROF_NSYS_SESSION", session)
    monkeypatch.setattr(torch_backend, "has_cuda_activity", lambda: cuda)
    torch = spec("torch")

    taker, reason = choose_recorder(torch, [spec("nsight", **nsight), torch])

    assert (taker is None) is refused
    assert (
        "CUPTI serves one profiler only: ask for one of nsight and torch, or `t: nvtx`" in reason
    ) is refused
