"""nsys options on nodes whose GPUs some of them harm. There is no such GPU here: `nvidia-smi` and the help of
nsys are stand-ins, and the command lines are what counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.nsys_stand_in import executable

from rlprof_ops.backends.nsight import gpu_options, nsys_options, nsys_wrap
from rlprof_ops.backends.wrapping import Identity
from rlprof_ops.collect.event_logs import Notes
from rlprof_ops.host.contained_dir import ContainedDir

TRACES = "Possible values are 'cuda', {}'nvtx', 'cublas' or 'none'."
Node = Callable[..., str]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node with GPUs of these compute capabilities, and an nsys that knows `cuda-sw` or does not."""

    def made(*capabilities: str, software: bool = True) -> str:
        told = "\n".join(capabilities)
        executable(
            tmp_path / "nvidia-smi", f'#!/bin/bash\n[ "$1" = --query-gpu=compute_cap ] && echo "{told}"\n'
        )
        traces = TRACES.format("'cuda-sw', " if software else "")
        nsys = executable(tmp_path / "nsys", f'#!/bin/bash\n[ "$1" = launch ] && cat <<< "{traces}"\n')
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(nsys_options, "has_nvidia_driver", lambda: True)
        gpu_options._node.cache_clear()
        nsys_wrap._told.clear()
        return str(nsys)

    yield made
    gpu_options._node.cache_clear()


def asked(**options: str) -> SimpleNamespace:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return SimpleNamespace(options=named, flags=(), on_error="continue")


def words(nsys: str, **options: str) -> tuple[list[str], list[str]]:
    split = nsys_options.split_options(asked(**options), nsys=nsys)
    return [*split.launch, *split.start], list(split.notes)


QUIET = ["--sample=none", "--cpuctxsw=none", "--force-overwrite=true"]


@pytest.mark.parametrize(
    ("capabilities", "software", "traced"),
    [
        (["9.0"], True, "cuda,nvtx"),
        (["10.0"], True, "cuda-sw,nvtx"),
        (["9.0", "12.1"], True, "cuda-sw,nvtx"),
        (["10.3"], False, "cuda,nvtx"),
        (["[N/A]"], True, "cuda,nvtx"),
    ],
)
def test_cuda_is_traced_by_software_where_hardware_has_crashed(
    node: Node, capabilities: list[str], software: bool, traced: str
) -> None:
    line, notes = words(node(*capabilities, software=software))
    assert line == ["-t", traced, *QUIET]
    assert bool(notes) == (traced == "cuda-sw,nvtx")


def test_what_a_request_names_itself_stays_and_is_said(node: Node) -> None:
    line, notes = words(node("10.0"), t="nvtx,cuda", sample="process-tree")
    assert line == ["-t", "nvtx,cuda", "--cpuctxsw=none", "--force-overwrite=true", "--sample=process-tree"]
    assert notes == [
        "nsys traces nvtx,cuda on GPUs of compute capability 10, as asked: where workers crash, cuda-sw may"
        " help"
    ]


def test_presets_give_way(node: Node) -> None:
    nsys = node("12.0")
    line, notes = words(nsys, preset="rlinf")
    assert "--trace=cuda-sw,cudnn,cublas,nvtx,osrt" in line and "--sample=none" in line
    assert "--cpuctxsw=process-tree" in line
    assert notes == [
        "nsys traces CUDA by software (cuda-sw) on GPUs of compute capability 12: t:"
        " cuda,cudnn,cublas,nvtx,osrt asks for hardware",
        "nsys samples no CPU on GPUs of compute capability 12, as workers have hung there: sample:"
        " process-tree asks for it",
    ]
    line, _ = words(nsys, preset="rlinf", sample="process-tree", trace="cuda")
    assert "--trace=cuda" in line and "--sample=process-tree" in line


def test_the_worker_is_launched_so_and_the_manifest_is_told_once(node: Node, tmp_path: Path) -> None:
    nsys, env = node("10.0"), {"RLPROF_NODE_DIR": str(tmp_path / "n1")}
    for rank in range(2):
        command = nsys_wrap.session_command(Identity("policy", rank), asked(), env, nsys)
        assert command.words()[-2:] == ["-t", "cuda-sw,nvtx"]
    [path] = (tmp_path / "n1/events").iterdir()
    assert len(path.read_text().splitlines()) == 1
    notes = Notes()
    with ContainedDir(tmp_path / "n1") as tree:
        notes.read(tree, "events")
    said = "nsys traces CUDA by software (cuda-sw) on GPUs of compute capability 10: t: cuda,nvtx asks for"
    said += " hardware"
    assert notes.changed == [said] == [json.loads(path.read_text())["reason"]]


def test_windows_that_a_process_opens_itself_are_traced_so_too(node: Node) -> None:
    line = nsys_options.profile_words(asked(capture_range="nvtx"), 1, node("10.0"))
    assert line[line.index("-t") + 1] == "cuda-sw,nvtx"
