"""PyTorch's flight recorder in real gloo processes of a job: on, with a file of its own each, and never over
what the user has set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("torch")

from rlprof_ops.analyze.hang.flight_dumps import read_dump, read_folder
from rlprof_ops.job.knobs import python_path
from rlprof_ops.runtime.on_demand import torch_fr

NEW = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
OLD = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
OURS = ("TORCH_FR_", "TORCH_NCCL_", "RLPROF_")
# Two worlds of two ranks, as a trainer and a rollout server have them; each rank writes its dump where torch
# would.
PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
import torch._C._distributed_c10d as c10d

folder, world, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.environ.update(json.loads(sys.argv[4]))
dist.init_process_group("gloo", init_method=f"file://{folder}/{world}.store", rank=rank, world_size=2)
for _ in range(3 if world == "trainer" else 5):
    dist.all_reduce(torch.ones(4))
found = {name: value for name, value in os.environ.items() if name.startswith(("TORCH_FR_", "TORCH_NCCL_"))}
prefix = found.get("TORCH_FR_DUMP_TEMP_FILE", found.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE"))
if prefix:
    with open(f"{prefix}{rank}", "wb") as file:
        file.write(c10d._dump_fr_trace())
dist.destroy_process_group()
print(json.dumps({"pid": os.getpid(), "env": found}))
"""


def ranks(
    folder: Path,
    worlds: tuple[str, ...] = ("trainer",),
    env: Mapping[str, str] | None = None,
    in_code: Mapping[str, str] | None = None,
) -> list[dict[str, object]]:
    """What each rank of each world says of itself; `in_code`: variables that it sets before its group."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    (folder / "node").mkdir()
    own = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    own |= {"RLPROF_NODE_DIR": str(folder / "node"), "PYTHONPATH": python_path(None)}
    own |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **(env or {})}
    started = [
        subprocess.Popen(
            [sys.executable, str(program), str(folder), world, str(rank), json.dumps(in_code or {})],
            env=own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for world in worlds
        for rank in range(2)
    ]
    ended = [process.communicate(timeout=240) for process in started]
    assert all(process.returncode == 0 for process in started), ended
    assert not any("rlprof" in said for _, said in ended), ended
    if not {*OLD} & {*(env or {}), *(in_code or {})}:
        assert not any("deprecated" in said for _, said in ended), ended
    return [json.loads(out) for out, _ in ended]


def test_each_process_has_a_file_of_its_own_and_worlds_stay_apart(tmp_path: Path) -> None:
    said = ranks(tmp_path, ("trainer", "rollout"))
    for each in said:
        assert each["env"]["TORCH_FR_BUFFER_SIZE"] == "2000"
        assert each["env"]["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
        prefix = each["env"]["TORCH_FR_DUMP_TEMP_FILE"]
        assert prefix.startswith(f"{tmp_path}/node/torch_fr/{each['pid']}/fr_")
    assert len({each["env"]["TORCH_FR_DUMP_TEMP_FILE"] for each in said}) == 4
    found = read_folder(tmp_path / "node")
    assert not found.unread and len(found.worlds) == 2
    counts = [sorted(len(dump.entries) for dump in world.values()) for world in found.worlds]
    assert sorted(counts) == [[3, 3], [5, 5]]
    assert all(sorted(world) == [0, 1] for world in found.worlds)


@pytest.mark.parametrize("by", ["env", "in_code"])
@pytest.mark.parametrize("names", [NEW, OLD])
def test_what_the_user_sets_stays(tmp_path: Path, names: tuple[str, str], by: str) -> None:
    chosen = {names[0]: "2", names[1]: f"{tmp_path}/mine_", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    assert [each["env"] for each in ranks(tmp_path, **{by: chosen})] == [chosen, chosen]
    assert [len(read_dump(tmp_path / f"mine_{rank}", rank).entries) for rank in range(2)] == [2, 2]
    assert not [*(tmp_path / "node").iterdir()]


@pytest.mark.parametrize("off", [{"RLPROF_TORCH_FR": "0"}, {"RLPROF_ADAPTERS": "0"}])
def test_it_can_be_switched_off(tmp_path: Path, off: dict[str, str]) -> None:
    assert [each["env"] for each in ranks(tmp_path, env=off)] == [{}, {}]
    assert not [*(tmp_path / "node").iterdir()]


def test_a_child_does_not_write_over_the_file_of_its_parent(tmp_path: Path) -> None:
    parent = f"{tmp_path}/node/torch_fr/1/fr_00000000_rank_"
    inherited = {"TORCH_FR_DUMP_TEMP_FILE": parent, "RLPROF_TORCH_FR_FILE": parent}
    for each in ranks(tmp_path, env=inherited):
        assert f"/torch_fr/{each['pid']}/" in each["env"]["TORCH_FR_DUMP_TEMP_FILE"]


ASKED = """
import os, sys, threading, time
from pathlib import Path
import torch
import torch.distributed as dist
import torch._C._distributed_c10d as c10d
from rlprof_ops.runtime.on_demand import watcher

def ask(name):
    watcher.leave(node / "control", watcher.CaptureRequest(name, ("*",), None, watcher.DUMPS, {}, 1, None))

def breaks():
    called.set()
    raise RuntimeError("no dump today")

node, called, works = Path(os.environ["RLPROF_NODE_DIR"]), threading.Event(), c10d._dump_fr_trace
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(4))
c10d._dump_fr_trace = breaks
ask("first")
assert called.wait(120) and not [*node.glob("torch_fr/*/*")]
c10d._dump_fr_trace = works
ask("second")
until = time.monotonic() + 120
while not [*node.glob("torch_fr/*/[a-z]*")] and time.monotonic() < until:
    dist.all_reduce(torch.ones(4))
    time.sleep(0.05)
dist.destroy_process_group()
"""


def test_a_dump_that_fails_harms_nothing_and_the_next_one_comes(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    program = tmp_path / "program.py"
    program.write_text(ASKED)
    own = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    own |= {"RLPROF_NODE_DIR": str(tmp_path / "node"), "PYTHONPATH": python_path(None)}
    done = subprocess.run(
        [sys.executable, str(program)], env=own, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "no dump today" in done.stderr
    [[dump]] = [[*world.values()] for world in read_folder(tmp_path / "node").worlds]
    assert dump.entries and dump.path.suffix == ".pickle"


@pytest.fixture
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """`init_process_group` of a module that is followed in this process, without the thread."""
    for name in (*NEW, *OLD, "TORCH_NCCL_DUMP_ON_TIMEOUT", "RLPROF_TORCH_FR_FILE", "RLPROF_TORCH_FR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    monkeypatch.setattr(torch_fr, "_watching", os.getpid())
    module = ModuleType("distributed_c10d")

    def init_process_group(
        backend: str = "", init_method: str | None = None, timeout: object = None, store: object = None
    ) -> str:
        return backend

    module.init_process_group = init_process_group  # type: ignore[attr-defined]
    torch_fr.install("torch.distributed.distributed_c10d", module)
    called: Callable[..., object] = module.init_process_group  # type: ignore[attr-defined]
    return called


@pytest.mark.parametrize(("version", "names"), [("2.7.1+cu126", OLD), ("2.8.0", NEW), ("2.13.0a0+git1", NEW)])
def test_torch_is_told_by_the_names_that_it_reads(
    armed: Callable[..., object], monkeypatch: pytest.MonkeyPatch, version: str, names: tuple[str, str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))  # type: ignore[arg-type]
    assert armed("nccl") == "nccl"
    assert {name for name in (*NEW, *OLD) if name in os.environ} == {*names}
    assert os.environ[names[0]] == "2000"


def test_ranks_that_meet_share_a_name_and_others_do_not(
    armed: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed import PrefixStore, TCPStore

    def name(**arguments: object) -> str:
        armed("gloo", **arguments)
        return os.path.basename(os.environ[NEW[1]])

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False)
    monkeypatch.setenv("MASTER_ADDR", "n1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    by_environment = name()
    assert name(init_method="env://") == by_environment
    assert name(store=server) == name(store=PrefixStore("x", client))
    monkeypatch.setenv("MASTER_PORT", "29501")
    others = {
        name(),
        name(init_method="tcp://n1:29500"),
        name(init_method="tcp://n1:29501"),
        name(store=server),
    }
    assert len(others | {by_environment}) == 5
