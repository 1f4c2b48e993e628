"""Who a process is: what it says itself, what the plugin set, what its launcher set."""

import pytest

from rlprof_ops.rayenv.worker_selection import identify
from rlprof_ops.runtime.process.worker_identity import find_identity, rank_from


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        ({"RLPROF_RANK": "4", "RANK": "2"}, 4),
        ({"RLPROF_RANK": "", "RANK": "2", "SLURM_PROCID": "5"}, 2),
        ({"SLURM_PROCID": "5"}, 5),
        ({"PMI_RANK": "1"}, 1),
        ({"OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "0"}, 3),  # mpirun in a batch script
        ({"RANK": "x"}, None),
        ({"RANK": "-1"}, None),
        ({}, None),
    ],
)
def test_the_rank_is_the_launchers_everywhere(env, rank):
    assert rank_from(env) == rank
    assert find_identity("w", None, None, env).rank == (rank or 0)
    assert identify({"env_vars": env}).rank == rank


def test_a_ray_worker_is_not_the_slurm_task_that_started_ray():
    env = {"SLURM_PROCID": "5", "PMI_RANK": "5", "RAY_RAYLET_PID": "77"}

    assert rank_from(env) is None
    assert rank_from({**env, "RANK": "2"}) == 2
