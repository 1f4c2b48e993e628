"""Kernels by what kind of work they are, and copies by direction, on real traces."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import defaultdict

import numpy as np
import pytest

pytest.importorskip("msgspec")

from tests.analyze.shared import TORCH_FILES, real

from rlprof_ops.analyze.columns import MEMCPY, Trace
from rlprof_ops.analyze.kernel_names import kernel_class
from rlprof_ops.analyze.metrics.gpu_work.copies import copy_totals, direction
from rlprof_ops.analyze.readers.nsys_sqlite import read_nsys_sqlite
from rlprof_ops.analyze.readers.torch_trace import read_torch

EXPORT = "h100_2gpu_part.sqlite"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>", "communication"),
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128>>", "attention"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128", "attention"),
        ("paged_attention_ll4mi_QKV_mfma16_kernel", "attention"),
        ("kernel_unified_attention_2d", "attention"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_cublas", "gemm"),
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "gemm"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN", "gemm"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu", "moe"),
        ("void moe::dev::routing::routingIndicesHistogramKernel<KernelParams>", "moe"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePass", "norm"),
        ("void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>", "norm"),
        (
            "void multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>",
            "optimizer",
        ),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float, at::native::ArgMaxOps<float>>>", "sampling"),
        ("void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024>", "sampling"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "kv cache"),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>", "elementwise"),
        ("my_own_kernel", "other"),
    ],
)
def test_names_of_the_field_have_their_class(name: str, expected: str) -> None:
    assert kernel_class(name) == expected


def trace_of(name: str) -> Trace:
    return read_nsys_sqlite(real(name)) if name == EXPORT else read_torch(real(f"torch/{name}.json.gz"))


@pytest.mark.parametrize("name", [*TORCH_FILES, EXPORT])
def test_hardly_anything_in_real_traces_is_of_no_class(name: str) -> None:
    trace = trace_of(name)
    spent: dict[str, int] = defaultdict(int)
    for code, duration in zip(trace.gpu.name.tolist(), trace.gpu.duration.tolist(), strict=True):
        spent[kernel_class(trace.names[code])] += duration
    assert spent["other"] <= 0.01 * sum(spent.values())


@pytest.mark.parametrize("name", [*TORCH_FILES, EXPORT])
def test_copies_add_up_to_what_the_trace_holds(name: str) -> None:
    trace = trace_of(name)
    found = copy_totals(trace, ())
    rows = trace.gpu.kind == MEMCPY
    assert sum(c.count for c in found) >= int(rows.sum())
    assert sum(c.total_ns for c in found) >= int(trace.gpu.duration[rows].sum())
    known = rows & (trace.gpu.size_bytes > 0) & (trace.gpu.duration > 0)
    assert sum(c.known_bytes for c in found) == int(np.sum(trace.gpu.size_bytes[known]))


def test_copies_of_a_real_export_by_its_own_words() -> None:
    """Oracle: SQLite sums up the export, whose own table tells what the kinds of copies mean."""
    with contextlib.closing(sqlite3.connect(f"file:{real(EXPORT)}?mode=ro", uri=True)) as export:
        told = dict(export.execute("select id, label from ENUM_CUDA_MEMCPY_OPER"))
        sums = export.execute(
            'select copyKind, count(*), sum("end" - start), sum(bytes) from CUPTI_ACTIVITY_KIND_MEMCPY'
            " group by copyKind"
        ).fetchall()
    words = {"Host-to-Device": "HtoD", "Device-to-Host": "DtoH", "Device-to-Device": "DtoD"}
    expected = {words[told[kind]]: (count, ns, size) for kind, count, ns, size in sums}
    found = copy_totals(trace_of(EXPORT), ())
    assert {c.direction: (c.count, c.total_ns, c.known_bytes) for c in found} == expected
    assert (
        direction("__amd_rocclr_copyBuffer.kd") == "unknown"
        and direction("MEMORY_COPY_HOST_TO_DEVICE") == "HtoD"
    )
