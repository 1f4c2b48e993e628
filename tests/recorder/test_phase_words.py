"""What the recorder and the report take a phase for by its name: names of real trainers, and near misses."""

from __future__ import annotations

import pytest

from rlprof_ops.recorder.detect.phase_words import CALLS, GENERATION, SEASONAL, WAITING
from rlprof_ops.recorder.detect.ranks import RankDetector
from rlprof_ops.recorder.detect.slow_steps import StepDetector
from rlprof_ops.recorder.samples.step_marks import ToldStep
from rlprof_ops.runtime.ranges.phase_times import Phase

RULES = {"seasonal": SEASONAL, "waiting": WAITING, "calls": CALLS, "generation": GENERATION}
# The trainers' own names for their phases (verl, NeMo RL, RLinf, slime, SkyRL, AReaL, ROLL, OpenRLHF).
NAMES = {
    "seasonal": """
        eval evaluate run_eval total_validation_time validation_total idle/validation testing val val_step
        test_set dump_eval_results log_eval_results lm_engine.evaluate_lm save save_checkpoints
        save_checkpoint save_hf_model hf_save dcp_save do_checkpoint checkpointing load_checkpoints
        checkpoint_for_recover cleanup_old_checkpoints dump_data_batch runEval doSave autosave ckpt_upload
    """,
    "waiting": """
        weight_sync param_sync train_wait idle/refit_event_wait broadcast_to_inference_engines load_bcast_wait
        student_internal_broadcast dist.barrier allreduce all_gather grad_reduce_scatter await_results
        pynccl nccl:all_reduce wait waitAll
        vllm_internal_worker/update_weights_from_collective
    """,
    "calls": """
        reward rewards compute_reward compute_rewards compute_rm_score reward_calculation reward_postprocess
        get_token_reward apply_reward_kl_penalty get_reward_model_output compute_bootstrap_rewards
        dtensor_policy_worker/score env/bootstrap_step env_interact_step environment tool_call llm_judge
        verify_answers fwd_logprobs_values_reward reward_timer getReward rescore
    """,
    "generation": """
        gen gen_max generate generation generate_sequences exposed_generation step_generate generate_rollouts
        rollout rollout/generate generate_one_epoch {timer_prefix}/run_rollouts generate_async rollout_async
        vllm_genertion_worker/generate megatron_policy_worker/generate agent_loop agent_loop_rollout_generate
        rollout_controller.rollout_batch sample sampling textGeneration regenerate
    """,
    "": """
        train actor_train update_actor update_critic old_log_prob compute_log_prob ref_logp adv values
        compute_advantages_and_returns policy_training train_step cal_adv_and_returns recompute_logp
        kl_divergence convergence_check divergence policy_agent generalized_advantage_estimation generic_step
        {timer_prefix}/per_agent_misc_metrics retrieval retrieve_docs invalidate_cache medieval latest_weights
        attestation train_async async_update stool underscore venv envelope interval approval
        prepare_for_generation prepare_for_generation/total update_weights_from_checkpoint_engine
        prepare_for_generation/transfer_and_update_weights update_rollout_weights sync_rollout_weights
        actor/sync_model_to_rollout optim_step forward_backward data_loading
        idle/generation_limit_pause run_tests kl_val
    """,
}
MORE = {  # names of which two things are true
    "env/bootstrap_step": {"calls"},
    "rollout/poll_weight_sync": {"waiting"},
    "generate_and_reward": {"calls", "generation"},
    "wait_for_rollout_store_ready": {"waiting", "generation"},
    "evaluate_rollouts": {"seasonal", "generation"},
}


@pytest.mark.parametrize(
    ("name", "said"),
    [(name, {rule} - {""}) for rule, names in NAMES.items() for name in names.split()] + [*MORE.items()],
)
def test_a_phase_is_what_its_words_say(name: str, said: set[str]) -> None:
    assert {rule for rule, words in RULES.items() if words.search(name)} == said


@pytest.mark.parametrize("name", ["retrieval", "invalidate_cache", "load"])
def test_a_slow_phase_is_told_whatever_its_name_holds(name: str) -> None:
    detector, found = StepDetector(), []
    for step in range(1, 41):
        own = (3.0 if step == 30 else 0.1) + step % 3 / 1000
        phases = {"generation": Phase(1, 0.0, 0.2, 0.2), name: Phase(1, 0.2, own, own)}
        found.append(detector.add(ToldStep("driver", 0, 1, True, step, step * 10**10, own + 0.2, phases)))
    assert [(row.step, row.phase) for row in found if row is not None] == [(30, name)]


@pytest.mark.parametrize("name", ["generate_async", "generate"])
def test_a_slow_rank_is_told_whatever_its_phase_is_called(name: str) -> None:
    detector, found = RankDetector("rollout"), []
    for step in range(1, 41):
        took = {
            rank: 10 + (step * 7 + rank * 3) % 5 / 50 + (8 if rank == 5 and step > 20 else 0)
            for rank in range(8)
        }
        phases = {name: took, "load": dict.fromkeys(took, 0.5)}
        found += detector.add(step, {rank: seconds + 1 for rank, seconds in took.items()}, phases, step)
    assert [(row.phase, row.ranks) for row in found] == [(name, (5,))]
