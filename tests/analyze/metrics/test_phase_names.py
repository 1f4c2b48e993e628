"""The names of phases that trainers use are one vocabulary in the report."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlprof_ops import trainers
from rlprof_ops.analyze.metrics.phases import canonical

# As the trainers' own code writes them: verl's marked_timer and worker methods, NeMo RL's wrap_with_nvtx_name,
# RLinf's Worker.timer.
WRITTEN = {
    "gen": "generation",
    "generate_sequences": "generation",
    "reward": "reward",
    "compute_rm_score": "reward",
    "old_log_prob": "logprob",
    "compute_log_prob": "logprob",
    "ref": "ref_logprob",
    "compute_ref_log_prob": "ref_logprob",
    "values": "values",
    "adv": "advantage",
    "update_actor": "train",
    "update_critic": "critic_train",
    "update_weights": "weight_sync",
    "vllm_genertion_worker/generate": "generation",
    "policy_worker/get_logprobs": "logprob",
    "policy_worker/get_reference_policy_logprobs": "ref_logprob",
    "megatron_policy_worker/train": "train",
    "dtensor_policy_worker/train": "train",
    "refit": "weight_sync",
    "actor/run_training": "train",
    "actor/sync_model_to_rollout": "weight_sync",
    "env/interact": "generation",
    "env/step": "generation",
    "rollout/generate": "generation",
    "rollout/predict": "generation",
}


@pytest.mark.parametrize(("label", "phase"), WRITTEN.items())
def test_labels_of_the_trainers_are_grouped(label, phase):
    assert canonical(label) == phase


@pytest.mark.parametrize("name", ["nemo_rl", "verl", "rlinf"])
def test_the_trainers_own_tables_say_the_same(name):
    """What `rlprof plan` prints for a trainer and what the report calls it."""
    told = {label: phase for phase, labels in trainers.get(name).phase_names.items() for label in labels}

    assert {label: told[label] for label in told.keys() & WRITTEN} == {
        label: WRITTEN[label] for label in told.keys() & WRITTEN
    }
    assert len(told.keys() & WRITTEN) >= 5, "most are written above"


@pytest.mark.parametrize(
    "label, phase",
    [
        ("dtensor_policy_worker/train", "train"), ("actor/compute_adv", "advantage"), ("rollout/generate_epoch", "generation"),
        ("env/interact_once", "generation"), ("actor/recv_traj", "actor/recv_traj"), ("my_worker/my_phase", "my_worker/my_phase"),
    ],
)  # fmt: skip
def test_labels(label, phase):
    assert canonical(label) == phase


def test_phases_are_told_without_the_dialects() -> None:
    """A dialect brings the trainer's whole configuration with it, which no report has a use for."""
    for name in trainers.frameworks():
        assert trainers.get(name).phase_names in trainers.phases()
    code = (
        "import sys; from rlprof_ops.analyze.phase_names import known; known('gen')\n"
        "print([name for name in sys.modules if name.endswith('.dialect') or name == 'yaml'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
