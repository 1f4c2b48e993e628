"""The names of phases that trainers use are one vocabulary in the report."""

from __future__ import annotations

import pytest

from rlprof_ops import frameworks
from rlprof_ops.analyze.metrics.phases import canonical


@pytest.mark.parametrize("name", ["nemo_rl", "verl", "verl-0.8", "verl-legacy", "rlinf"])
def test_labels_of_the_trainers_are_grouped(name):
    for phase, labels in frameworks.get(name).phase_names.items():
        for label in labels:
            assert canonical(label) == phase, label


@pytest.mark.parametrize(
    "label, phase",
    [
        ("dtensor_policy_worker/train", "train"), ("actor/compute_adv", "advantage"), ("rollout/generate_epoch", "generation"),
        ("env/interact_once", "generation"), ("actor/recv_traj", "actor/recv_traj"), ("my_worker/my_phase", "my_worker/my_phase"),
    ],
)  # fmt: skip
def test_labels(label, phase):
    assert canonical(label) == phase
