"""Named defaults of trainers, and options under two names."""

from types import SimpleNamespace

import pytest

from rlprof_ops.backends.nsight import nsys_options
from rlprof_ops.backends.nsight.presets import PRESETS, resolve


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_gives_its_options_and_what_is_said_wins(name):
    assert resolve({"preset": name}) == PRESETS[name]
    assert resolve({"preset": name, "t": "nvtx"}) == {
        **{k: v for k, v in PRESETS[name].items() if k != "trace"},
        "t": "nvtx",
    }


def test_a_flag_counts_as_said():
    assert "cudabacktrace" not in resolve({"preset": "rlinf"}, ("cudabacktrace",))


def test_a_preset_is_dealt_to_both_commands_of_a_session():
    split = nsys_options.split_options(SimpleNamespace(options={"preset": "rlinf"}, flags=()))

    assert split.launch == (
        "--trace=cuda,cudnn,cublas,nvtx,osrt",
        "--cudabacktrace=all",
        "--osrt-threshold=1000",
    )
    assert split.start == ("--force-overwrite=true", "--sample=process-tree", "--cpuctxsw=process-tree")
