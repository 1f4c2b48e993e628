"""The table of built-in annotations in RLinf's GPU profiling document: what each label is in a report."""

import pytest

from rlprof_ops.analyze.metrics.phases import canonical

GROUPED = {
    "actor/compute_adv": "advantage",
    "actor/run_training": "train",
    "actor/sync_model_to_rollout": "weight_sync",
    "rollout/predict": "generation",
    "rollout/generate": "generation",
    "rollout/generate_epoch": "generation",
    "rollout/poll_weight_sync": "weight_sync",
    "rollout/request_weight_sync": "weight_sync",
    "env/step": "generation",
    "env/bootstrap_step": "generation",
    "env/interact": "generation",
    "env/interact_once": "generation",
}
# Receiving and sending: phases of their own, under RLinf's name.
KEPT = (
    "actor/recv_traj",
    "rollout/recv_obs",
    "rollout/send_actions",
    "rollout/send_traj",
    "env/recv_actions",
    "env/send_obs",
    "env/send_rollout_trajectories",
)


@pytest.mark.parametrize(("label", "phase"), [*GROUPED.items(), *((label, label) for label in KEPT)])
def test_every_built_in_label_has_its_phase(label, phase):
    assert canonical(label) == phase
