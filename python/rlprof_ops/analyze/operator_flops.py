"""What an operator computes and moves, by the shapes of its inputs.

FLOPs as `torch.utils.flop_counter` counts them, a multiplication and an addition as two; but a causal mask
halves attention, for its kernels skip what is masked, and groups divide what a convolution's weights cost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod

from msgspec import Struct

from rlprof_ops.analyze.columns import Shape

ELEMENT_BYTES = {
    "float": 4,
    "float32": 4,
    "int": 4,
    "int32": 4,
    "uint32": 4,
    "double": 8,
    "float64": 8,
    "long": 8,
    "int64": 8,
    "bfloat16": 2,
    "half": 2,
    "float16": 2,
    "short": 2,
    "char": 1,
    "byte": 1,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
}
Moved = list[tuple[int, int]]  # (input whose type it has, elements)


class Work(Struct, frozen=True):
    """What one call does. `size_bytes`: its inputs and results, once each; None where a type is unknown."""

    inputs: str
    dtype: str
    flops: int
    size_bytes: int | None


class _Call(Struct, frozen=True):
    """The inputs of a call; `first` of the two that are multiplied, `causal` the one that says so, if any."""

    dims: list[list[int]]
    said: list[str]
    first: int
    causal: int

    @property
    def pair(self) -> tuple[list[int], list[int]]:
        return self.dims[self.first], self.dims[self.first + 1]

    @property
    def is_causal(self) -> bool:
        return bool(self.causal and self.number(self.causal))

    def number(self, place: int) -> int:
        """A plain value: what Python writes, which is JSON but for its capitals."""
        return int(json.loads(self.said[place].lower()))

    def numbers(self, place: int) -> list[int]:
        """A plain list."""
        return [int(each) for each in json.loads(self.said[place].lower())]

    def moved(self, count: int, *results: tuple[int, int]) -> Moved:
        return [(i, prod(self.dims[i])) for i in range(count)] + list(results)


def _matmul(call: _Call) -> tuple[int, Moved]:
    (*batch, m, k), (*others, rows, n) = call.pair
    if others != batch or rows != k:
        raise ValueError("no product")
    out = prod(batch) * m * n
    return 2 * out * k, call.moved(call.first + 2, (call.first, out))


def _scaled_matmul(call: _Call) -> tuple[int, Moved]:
    return _matmul(call)[0], [(-1, 0)]  # the type of its result is not told


def _convolution(call: _Call) -> tuple[int, Moved]:
    taken, weight = call.pair
    stride, padding, dilation, more = map(call.numbers, (3, 4, 5, 7))
    transposed, groups = call.number(6), call.number(8)
    sides = zip(taken[2:], weight[2:], stride, padding, dilation, more, strict=True)
    out = [
        (i - 1) * s - 2 * p + d * (k - 1) + o + 1 if transposed else (i + 2 * p - d * (k - 1) - 1) // s + 1
        for i, k, s, p, d, o in sides
    ]
    channels = weight[1] * groups if transposed else weight[0]
    flops = 2 * taken[0] * prod(weight) * prod(taken[2:] if transposed else out)
    return flops, call.moved(2, (0, taken[0] * channels * prod(out)))


def _convolution_backward(call: _Call) -> tuple[int, Moved]:
    taken, weight = call.pair
    wanted = call.numbers(10)[:2]
    results = [(i, prod(call.dims[i])) for i, asked in zip((1, 2), wanted, strict=True) if asked]
    places = (taken if call.number(7) else call.dims[0])[2:]
    return 2 * len(results) * taken[0] * prod(weight) * prod(places), call.moved(3, *results)


def _attention(call: _Call) -> tuple[int, Moved]:
    (batch, heads, queries, width), (_, _, keys, _) = call.pair
    value = call.dims[call.first + 2][3]
    if call.is_causal and queries != keys:
        raise ValueError("how much is masked depends on where the mask begins")
    backward = call.first == 1
    products = 3 * width + 2 * value if backward else width + value
    flops = 2 * batch * heads * queries * keys * products // (1 + call.is_causal)
    out = (0, batch * heads * queries * value)
    return flops, call.moved(4, out, *call.moved(4)[1:]) if backward else call.moved(3, out)


_COUNTS: dict[str, tuple[Callable[[_Call], tuple[int, Moved]], int, int]] = {
    "aten::mm": (_matmul, 0, 0),
    "aten::bmm": (_matmul, 0, 0),
    "aten::addmm": (_matmul, 1, 0),
    "aten::addmm_": (_matmul, 1, 0),
    "aten::_addmm_activation": (_matmul, 1, 0),
    "aten::baddbmm": (_matmul, 1, 0),
    "aten::baddbmm_": (_matmul, 1, 0),
    "aten::_scaled_mm": (_scaled_matmul, 0, 0),
    "aten::convolution": (_convolution, 0, 0),
    "aten::convolution_backward": (_convolution_backward, 1, 0),
    "aten::_scaled_dot_product_flash_attention": (_attention, 0, 4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (_attention, 0, 4),
    "aten::_scaled_dot_product_efficient_attention": (_attention, 0, 6),
    "aten::_scaled_dot_product_cudnn_attention": (_attention, 0, 6),
    "aten::_scaled_dot_product_flash_attention_backward": (_attention, 1, 11),
    "aten::_scaled_dot_product_efficient_attention_backward": (_attention, 1, 11),
    "aten::_scaled_dot_product_cudnn_attention_backward": (_attention, 1, 14),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (_attention, 1, 7),
}
"""(what counts it, the first of its two factors, which input says that attention is causal), by the arguments
that ATen's native_functions.yaml lists.
"""
COUNTED = frozenset(_COUNTS)


def work_of(name: str, shape: Shape) -> Work | None:
    """What a call of an operator of `COUNTED` does; None where its inputs do not tell."""
    count, first, causal = _COUNTS[name]
    try:
        dims, types, said = (json.loads(part) for part in shape)
        call = _Call(dims, said or [], first, causal)
        flops, moved = count(call)
        width = [
            ELEMENT_BYTES.get(types[i].removeprefix("c10::").lower(), 0) if i >= 0 else 0 for i, _ in moved
        ]
        size = (
            sum(w * elements for w, (_, elements) in zip(width, moved, strict=True)) if all(width) else None
        )
        inputs = " × ".join(str(list(map(int, side))) for side in call.pair) + " causal" * call.is_causal
        return Work(inputs, types[first].removeprefix("c10::"), int(flops), size) if flops > 0 else None
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None
