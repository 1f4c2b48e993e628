"""What nsys traces when nobody says it: CUDA where a GPU is, ranges everywhere."""

import pytest

from rlprof_ops.backends import nsight, nsight_options


@pytest.mark.parametrize(("gpu", "traced"), [(True, "cuda,nvtx"), (False, "nvtx")])
def test_cuda_is_traced_where_there_is_a_gpu(monkeypatch, gpu, traced):
    monkeypatch.setattr(nsight_options, "has_gpu", lambda: gpu)

    assert nsight.split_options(None).launch == ("-t", traced)
