"""Every label that the trainers' sources write is in a table here, and the table is what the report makes
of it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import upstream

from rlprof_ops.analyze.columns import Spans
from rlprof_ops.analyze.metrics.phases import Step, find_phases
from rlprof_ops.analyze.phase_names import canonical, known

NEMO_RL = {
    "generation": "megatron_policy_worker/generate sglang_genertion/generate vllm_genertion_worker/generate"
    " vllm_genertion_worker/generate_text",
    "reward": "dtensor_policy_worker/score dtensor_policy_worker_v2/score",
    "ref_logprob": "megatron_policy_worker/get_reference_policy_logprobs"
    " policy_worker/get_reference_policy_logprobs policy_worker/get_reference_policy_logprobs_presharded",
    "logprob": "dtensor_policy_worker/get_logprobs dtensor_policy_worker_v2/get_logprobs"
    " megatron_policy_worker/get_logprobs policy_worker/get_logprobs_presharded"
    " dtensor_policy_worker/get_topk_logits dtensor_policy_worker_v2/get_topk_logits"
    " megatron_policy_worker/get_topk_logits dtensor_policy_worker/prepare_for_lp_inference"
    " dtensor_policy_worker_v2/prepare_for_lp_inference",
    "values": "dtensor_value_worker_v2/get_values megatron_value_worker/get_values",
    "train": "dtensor_policy_worker/train dtensor_policy_worker_v2/train megatron_policy_worker/train"
    " policy_worker/train_presharded megatron_policy_worker/train_microbatch"
    " policy_worker/train_microbatch_presharded megatron_policy_worker/begin_train_step"
    " megatron_policy_worker/finish_train_step megatron_policy_worker/abort_train_step"
    " policy_worker/begin_train_step_presharded policy_worker/finish_train_step_presharded"
    " policy_worker/abort_train_step_presharded dtensor_policy_worker/prepare_for_training"
    " dtensor_policy_worker_v2/prepare_for_training",
    "critic_train": "dtensor_value_worker_v2/train megatron_value_worker/train"
    " dtensor_value_worker_v2/prepare_for_training",
    "weight_sync": "dtensor_policy_worker/offload_after_refit dtensor_policy_worker/offload_before_refit"
    " dtensor_policy_worker_v2/offload_after_refit dtensor_policy_worker_v2/offload_before_refit"
    " megatron_policy_worker/offload_after_refit megatron_policy_worker/offload_before_refit"
    " dtensor_policy_worker/stream_weights_via_ipc_zmq dtensor_policy_worker_v2/stream_weights_via_ipc_zmq"
    " dtensor_policy_worker_v2/stream_weights_via_http megatron_policy_worker/stream_weights_via_ipc_zmq"
    " megatron_policy_worker/stream_remote_sparse_weights megatron_policy_worker/prepare_refit_info"
    " megatron_policy_worker/init_remote_sparse_delta_baseline"
    " vllm_genertion_worker/update_weights_from_collective vllm_genertion_worker/update_weights_via_ipc_zmq"
    " vllm_internal_worker_extension/update_weights_via_ipc_zmq"
    " vllm_internal_worker_extension/update_weights_from_collective"
    " vllm_internal_worker_extension/update_weights_from_checkpoint_engine"
    " vllm_internal_worker_extension/update_weights_from_decoded_sparse_payload",
}
RLINF = {
    "generation": "env/bootstrap_step env_interact_step generate_one_epoch interact predict predict_rtc"
    " rollout/generate run_interact_once",
    "reward": "compute_bootstrap_rewards compute_reward compute_rewards get_reward_model_output",
    "ref_logprob": "actor/compute_opd_teacher_logprobs",
    "advantage": "actor/compute_adv compute_advantages_and_returns",
    "train": "forward_actor forward_alpha run_training training_step update_one_epoch",
    "critic_train": "forward_critic",
    "weight_sync": "actor/sync_model_to_rollout rollout/poll_weight_sync rollout/request_weight_sync"
    " sync_model_from_actor",
    "validation": "evaluate run_eval",
    # Moving and storing data: phases of their own, under RLinf's names.
    "": "actor/recv_traj append_lerobot_episode archive_lerobot_episodes construct_rollout_batch"
    " drain_received_trajectories env/send_lerobot_episodes env/send_rollout_trajectories"
    " wait_for_rollout_store_ready",
}
WRITES = {
    "nemo_rl": (NEMO_RL, r"""wrap_with_nvtx_name\(\s*f?["']([^"']+)["']"""),
    "rlinf": (RLINF, r"""Worker\.timer\(\s*["']([^"']+)["']"""),
}


def labels(root: Path, pattern: str) -> set[str]:
    found: set[str] = set()
    for path in root.rglob("*.py"):
        found.update(re.findall(pattern, path.read_text(encoding="utf-8")))
    return found


@pytest.mark.upstream
@pytest.mark.parametrize("trainer", WRITES)
def test_the_table_has_every_label_of_the_sources(trainer: str) -> None:
    table, pattern = WRITES[trainer]
    written = labels(upstream.tree(trainer), pattern)
    assert {label for row in table.values() for label in row.split()} == written


@pytest.mark.parametrize("trainer", WRITES)
def test_the_report_groups_them_so(trainer: str) -> None:
    for phase, row in WRITES[trainer][0].items():
        for label in row.split():
            assert known(label) == (phase or None), label
            assert canonical(label) == (phase or label)


def spans(*rows: tuple[int, int, int]) -> Any:
    start, end, name = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return type("Ranges", (), {
        "start": start, "end": end, "name": name, "duration": end - start, "__len__": lambda self: len(start),
    })()  # fmt: skip


def test_a_wrapper_lets_the_known_range_inside_count() -> None:
    """An outer range that no trainer is known to write hid the `train` inside it."""
    assert Spans
    names = ["my_trainer/one_step", "policy_worker/train", "my_trainer/logging"]
    trace = type("Trace", (), {
        "names": names, "ranges": spans((0, 100, 0), (20, 60, 1), (120, 150, 2)),
    })()  # fmt: skip
    found = find_phases(trace, (Step(3, 0, 200),))
    assert [(s.phase, s.start, s.end) for s in found] == [
        ("my_trainer/one_step", 0, 20),
        ("train", 20, 60),
        ("my_trainer/one_step", 60, 100),
        ("my_trainer/logging", 120, 150),
    ]
