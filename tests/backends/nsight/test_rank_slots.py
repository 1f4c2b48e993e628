"""Numbers for an engine's inner workers, run by bash as Ray does; a stand-in for nsys that becomes the
program.
"""

import os
import shlex
import subprocess
import sys

import pytest

from rlprof_ops.backends.nsight.rank_slots import RANK, numbered
from rlprof_ops.rayenv.worker_selection import INNER_WORKER, Identity, identify

SAY = (
    'import os, sys; print(os.environ["RLPROF_RANK"], sys.argv[1:], os.environ.get("WRAPPED"), flush=True);'
    " sys.stdin.read()"
)


@pytest.fixture
def start(tmp_path):
    """`start(base=0, ranks=None)` starts a worker and returns (its process, what it said of itself)."""
    processes = []

    def begin(base=0, ranks=None):
        text = numbered(
            ["env", "WRAPPED=a 'b' $c"],
            shlex.quote(sys.executable),
            "vllm_tp_worker",
            base,
            ranks,
            {"RLPROF_NODE_DIR": str(tmp_path / "node dir")},
        )
        process = subprocess.Popen(
            ["bash", "-c", f"exec {text} -c {shlex.quote(SAY)} 'default worker.py'"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process, process.stdout.readline().strip()

    yield begin
    for process in processes:
        process.communicate(timeout=60)


def test_each_takes_the_first_free_number_from_its_base_on(start):
    said = [start(base)[1].split()[0] for base in (0, 0, 2, 2, 0)]

    assert said == ["0", "1", "2", "3", "4"]


def test_many_at_once_take_one_each(tmp_path):
    text = numbered(
        ["env"], "sh -c 'echo $RLPROF_RANK; read -r told'", "w", 0, None, {"RLPROF_NODE_DIR": str(tmp_path)}
    )
    processes = [
        subprocess.Popen(
            ["bash", "-c", f"exec {text}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(12)
    ]
    said = [int(process.stdout.readline()) for process in processes]  # before the first of them ends
    for process in processes:
        process.communicate(timeout=60)

    assert sorted(said) == list(range(12))


def test_the_number_of_one_that_is_gone_is_free_again(start):
    first, _ = start()
    start()
    first.communicate(timeout=60)

    assert start()[1].split()[0] == "0"
    assert start()[1].split()[0] == "2"


def test_who_is_not_selected_starts_without_the_wrap(start):
    said = [start(0, (1,))[1] for _ in range(3)]

    assert said == [
        "0 ['default worker.py'] None",
        "1 ['default worker.py'] a 'b' $c",
        "2 ['default worker.py'] None",
    ]


def test_words_and_folders_get_the_number(tmp_path):
    words = ["printf", "%s\n", f"{tmp_path}/in place/rank{RANK}/x_rank{RANK}_%p", "a|b; $HOME"]
    text = numbered(words, "python", "w", 5, None, {"RLPROF_NODE_DIR": str(tmp_path)})

    done = subprocess.run(
        ["bash", "-c", f"exec {text}"], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.splitlines() == [f"{tmp_path}/in place/rank5/x_rank5_%p", "a|b; $HOME", "python"]
    assert os.path.isdir(tmp_path / "in place" / "rank5")


def test_who_is_an_inner_worker():
    nemo_rl = {"t": "cuda,cudnn,cublas,nvtx", "o": "vllm_tp_worker_3:5_%p"}
    vllm = {"t": "cuda,cudnn,cublas", "o": "worker_process_%p", "cuda-graph-trace": "node"}
    env = {"env_vars": {"RANK": "4"}}

    assert (identify(env, nemo_rl).worker, identify(env, nemo_rl).rank, identify(env, nemo_rl).base) == (
        INNER_WORKER,
        None,
        4,
    )
    assert identify(env, vllm) == Identity(INNER_WORKER, None, None, 4)
    assert identify(env, vllm | {"t": "nvtx"}) == Identity(None, 4)
    assert identify({**env, "rlprof": {"worker": "mine", "rank": 1}}, vllm) == Identity("mine", 1)
