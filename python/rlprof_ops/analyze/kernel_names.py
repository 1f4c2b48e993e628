"""What kind of work a kernel does, by its name: the names that PyTorch, vLLM, SGLang, FlashAttention, Triton,
cuBLAS, cuDNN, CUTLASS, TensorRT-LLM, Transformer Engine, Composable Kernel and AITER give.

The first rule that fits counts, so what a fused kernel is named for first decides. What no rule knows is
"other": a class is never guessed from a time.
"""

from __future__ import annotations

import re

_COMMUNICATES = re.compile(r"nccl|rccl|cross_device_reduce", re.IGNORECASE)
# ROCm before 7.2 reports copies as kernels with these names
_COPIES = re.compile(
    r"^(MEMORY_COPY_(HOST_TO_DEVICE|DEVICE_TO_HOST|DEVICE_TO_DEVICE)|__amd_rocclr_copyBuffer(Rect)?(Aligned)?)(\.kd)?$"
)
COMMUNICATION, COPY, OTHER = "communication", "copy", "other"
_COLLECTIVE = re.compile(
    r"multimem_|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|nvshmem|deep_?ep|symm_?mem",
    re.IGNORECASE,
)
_RULES = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("optimizer", r"adam|adagrad|lamb_|sgd_|multi_tensor_apply|multi_tensor_(l2norm|scale)|fused_optim"),
        ("sampling", r"sampl|top_?k_?top_?p|multinomial|argmax|gumbel|exponential_kernel|distribution_"
                     r"|penalt(y|ies)|bitmatrix_logits"),
        ("moe", r"moe|expert|_matmul_ogs|routing|topk_forward|topk_gating|grouped_?gemm|group_?gemm"
                r"|permute_tokens|finalize_matmul_scatter|sum_bitmatrix_rows|bmm_\w*e2m1\w*"),
        ("kv cache", r"kv_?cache|reshape_and_cache|rotary|rope"),
        ("attention", r"attn|attention|flash_|fmha|\bmha|paged_kv|flashinfer|unified_attention|mla_|_mla\b"),
        ("norm", r"rms_?norm|layer_?norm|group_?norm|batch_?norm|cudnn::bn_|_norm_kernel|Rmsnorm2d"),
        ("gemm", r"gemm|gemv|matmul|nvjet|cijk_|cutlass|xmma|splitkreduce|split_?k|\bbmm_|wgmma|scudnn"
                 r"|convolve|implicit_gemm|wgrad|dgrad|fprop|cublas"),
        ("embedding", r"embedding|embs_|index_?select|vectorized_gather"),
        ("softmax and loss", r"softmax|cross_entropy|logsumexp|nll_loss"),
        ("quantise", r"quant|fp8|hfp8|mxfp4|scaled_fp"),
        ("reduce", r"reduce_kernel|DeviceReduce|RadixSort|DeviceScan|cub::|\bsort"),
        ("elementwise", r"elementwise|triton_poi|act_and_mul|silu|gelu|CatArrayBatchedCopy|copy_kernel|fill"
                        r"|permute|nchw|nhwc|where_|arange|scatter|gather"),
    )
)  # fmt: skip


def communicates(name: str) -> bool:
    return _COMMUNICATES.search(name) is not None


def copies(name: str) -> bool:
    return _COPIES.match(name) is not None


def kernel_class(name: str) -> str:
    """The class of a kernel, or of a copy or memset, by its name."""
    if name.startswith(("Memcpy", "Memset")) or copies(name):
        return COPY
    if communicates(name) or _COLLECTIVE.search(name):
        return COMMUNICATION
    for found, rule in _RULES:
        if rule.search(name):
            return found
    return OTHER
