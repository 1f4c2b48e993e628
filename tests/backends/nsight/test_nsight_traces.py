"""What nsys traces when nobody says it: CUDA where a GPU is, ranges everywhere."""

import pytest

from rlprof_ops.backends.nsight import nsys_options


@pytest.mark.parametrize(("gpu", "traced"), [(True, "cuda,nvtx"), (False, "nvtx")])
def test_cuda_is_traced_where_there_is_a_gpu(monkeypatch, gpu, traced):
    monkeypatch.setattr(nsys_options, "has_nvidia_driver", lambda: gpu)

    assert nsys_options.split_options(None).launch == ("-t", traced)
