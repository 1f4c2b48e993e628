"""Ranges in code that torch compiles as one graph, or traces: as without us, and once, whatever is open."""

from __future__ import annotations

import functools

import pytest

from rlprof_ops.runtime import profiler
from rlprof_ops.runtime.null_profiler import NullProfiler

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Layer(torch.nn.Module):
    """Has the ranges of `prof` in every way."""

    def __init__(self, prof):
        super().__init__()
        self.prof = prof
        self.attend = prof.annotate("attention")(lambda x: x * 2)
        self.early = profiler.annotate("early")(lambda x: x + 1)
        self.partial = prof.annotate("partial")(functools.partial(torch.mul, 2))
        self.builtin = prof.annotate("builtin")(torch.div)

    def forward(self, x):
        with self.prof.range("layer"), self.prof.range("inner"):
            return self.early(self.builtin(self.partial(self.attend(x)), 2))


def compiled(function, graphs):
    """`function` as one graph, which is added to `graphs` each time that it is made."""

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


@pytest.mark.parametrize("capture", [{}, {"each": "phase"}, {"backend": "torch"}])
@pytest.mark.parametrize("metrics", ["", "1"])
def test_it_is_compiled_once_before_in_and_after_a_window(capture, metrics, recorder, asked, monkeypatch):
    monkeypatch.setenv("RLPROF_METRICS", metrics)
    if "backend" in capture:
        asked(steps="2", **capture)
        prof = profiler.from_env("policy_worker", 0)
    else:
        prof, _ = recorder(steps="2", **capture)
    graphs = []
    run = compiled(Layer(prof), graphs)

    for step in (1, 2, 3):
        with prof.step(step):
            assert run(torch.ones(2)).tolist() == [3, 3]
    prof.close()

    assert len(graphs) == 1


def doubled(function):
    @functools.wraps(function)  # takes all attributes of the function along
    def run(x):
        return function(x) * 2

    return run


@pytest.mark.parametrize("outer", [doubled, torch.no_grad(), torch.inference_mode(mode=False)])
def test_a_decorator_around_an_annotated_function_is_compiled_too(outer, recorder, asked):
    """torch would leave it out, and compute something else, where the wrapper below says what to trace."""
    asked()
    prof, _ = recorder(steps="2")
    annotated = outer(prof.annotate("reward")(lambda x: x + 1))
    graphs = []
    run = compiled(lambda x: annotated(x), graphs)
    given = torch.ones(2, requires_grad=True)
    wanted = outer(lambda x: x + 1)(given)

    for step in (1, 2, 3):
        with prof.step(step):
            found = run(given)
            assert (found.tolist(), found.requires_grad) == (wanted.tolist(), wanted.requires_grad)
    prof.close()

    assert len(graphs) == 1


@pytest.mark.parametrize("whole", [False, True])
def test_annotated_methods(whole, recorder, asked):
    """Also one that is the compiled code itself."""
    asked()

    class Model(torch.nn.Module):
        def forward(self, x):
            return self.half(x) * 4 + self.one()

        @profiler.annotate("half")
        @staticmethod
        def half(x):
            return x / 2

        @profiler.annotate("one")
        def one(self):
            return 1

        if whole:
            forward = profiler.annotate("forward")(forward)

    prof, _ = recorder(steps="2,4")
    graphs = []
    run = compiled(Model(), graphs)

    for step in range(1, 6):
        with prof.step(step):
            assert run(torch.ones(2)).tolist() == [3, 3]
    assert len(graphs) == 1


def jit_traced(layer, x):
    return {node.kind() for node in torch.jit.trace(layer, x).inlined_graph.nodes()}


def fx_traced(layer, x):
    from torch.fx.experimental.proxy_tensor import make_fx

    return {str(node.target) for node in make_fx(layer)(x).graph.nodes}


def aot_traced(layer, x):
    from functorch.compile import aot_function

    graphs = []
    aot_function(layer.forward, fw_compiler=lambda graph, _: graphs.append(graph) or graph)(x)
    return {str(node.target) for graph in graphs for node in graph.graph.nodes}


@pytest.mark.parametrize("traced", [jit_traced, fx_traced, aot_traced])
def test_what_torch_traces_in_a_window_has_no_range_in_it(traced, asked, events):
    asked(backend="torch", steps="1")
    prof = profiler.from_env("policy_worker", 0)
    layer = Layer(prof)

    with prof.step(1):
        found = traced(layer, torch.ones(2))
        assert prof.any_open and layer(torch.ones(2)).tolist() == [3, 3]
    prof.close()

    assert "mul" in str(found) and not [name for name in found if "record_function" in name]


def test_with_nothing_asked():
    graphs = []
    run = compiled(Layer(NullProfiler()), graphs)

    assert run(torch.ones(2)).tolist() == [3, 3] and len(graphs) == 1
