"""Each parameter of RLinf's PyTorchProfiler document, seen where it takes effect: in what torch is asked,
and in the files.
"""

import json

import pytest

from rlprof_ops.runtime.compat.rlinf_profiler import PyTorchProfiler

pytestmark = pytest.mark.torch

SWITCHES = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
OFF = dict.fromkeys(SWITCHES, False)


def traces(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("*.json"))]


def one_call(tmp_path, **parameters):
    """Profile one inference call with these parameters; its traces."""
    import torch

    settings = {
        "export_tensorboard": True,
        "export_chrome_trace": False,
        "activities": ["cpu"],
        **OFF,
        **parameters,
    }
    prof = PyTorchProfiler(output_dir=str(tmp_path), **settings)
    with prof.call(forward_only=True):
        torch.ones(8, 8) @ torch.ones(8, 8)
    return traces(tmp_path)


def test_parameters_may_be_positional_as_in_rlinfs_own(tmp_path):
    prof = PyTorchProfiler(str(tmp_path), ["cpu"], 0, 1, 0, False, False)
    assert (prof.config.activities, prof.config.schedule_repeat, prof.config.profile_memory) == (
        ("cpu",),
        0,
        False,
    )
    with pytest.raises(TypeError, match="several values for activities"):
        PyTorchProfiler(str(tmp_path), ["cpu"], activities=["cpu"])
    with pytest.raises(TypeError, match="at most 13 parameters"):
        PyTorchProfiler(*range(14))


def test_a_repeat_of_zero_has_no_end(tmp_path):
    """As in torch.profiler.schedule, which RLinf hands it to."""
    settings = {"export_chrome_trace": False, "activities": ["cpu"], "schedule_repeat": 0, **OFF}
    prof = PyTorchProfiler(output_dir=str(tmp_path), **settings)
    for _ in range(3):
        with prof.call(forward_only=True):
            pass
    assert len(traces(tmp_path)) == 3


def asked_of(torch, monkeypatch):
    """With what each torch.profiler is made from now on."""
    asked = []

    class Profile(torch.profiler.profile):
        def __init__(self, **named):
            asked.append(named)
            super().__init__(**named)

    monkeypatch.setattr(torch.profiler, "profile", Profile)
    return asked


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_reaches_torch_alone(monkeypatch, tmp_path, switch):
    import torch

    asked = asked_of(torch, monkeypatch)
    assert one_call(tmp_path, **{switch: True}), "no trace"
    assert [name for name in SWITCHES if asked[0].get(name)] == [switch]


def test_shapes_memory_and_stacks_are_in_the_trace(tmp_path):
    def has(trace, test):
        return any(test(event) for event in trace["traceEvents"])

    found = {}
    for switch in ("record_shapes", "profile_memory", "with_stack"):
        for value in (False, True):
            (trace,) = one_call(tmp_path / f"{switch}{value}", **{switch: value})
            found[switch, value] = (
                has(trace, lambda e: "Input Dims" in e.get("args", {})),
                has(trace, lambda e: e.get("name") == "[memory]"),
                has(trace, lambda e: e.get("cat") == "python_function"),
            )
    assert [found[switch, False] for switch in ("record_shapes", "profile_memory", "with_stack")] == 3 * [
        (False, False, False)
    ]
    assert [
        found[switch, True][i] for i, switch in enumerate(("record_shapes", "profile_memory", "with_stack"))
    ] == [True, True, True]


def test_activities_choose_what_is_recorded(monkeypatch, tmp_path):
    import torch

    asked = asked_of(torch, monkeypatch)
    one_call(tmp_path, activities=["cpu"])
    assert [activity.name for activity in asked[0]["activities"]] == ["CPU"]


@pytest.mark.parametrize(
    ("tensorboard", "chrome"), [(True, False), (False, True), (True, True), (False, False)]
)
def test_exports_and_their_prefix(tmp_path, tensorboard, chrome):
    one_call(
        tmp_path, export_tensorboard=tensorboard, export_chrome_trace=chrome, chrome_filename_prefix="mine"
    )
    names = [path.name for path in tmp_path.rglob("*.json")]
    assert any(name.startswith("mine_") for name in names) is chrome
    assert any(name.endswith(".pt.trace.json") for name in names) is tensorboard
