"""ROLL."""

FOLLOWS = (
    "roll",
    "roll.distributed.scheduler.decorator",
    "roll.pipeline.agentic.agentic_pipeline",
    "roll.pipeline.agentic.agentic_rollout_pipeline",
    "roll.pipeline.distill.distill_pipeline",
    "roll.pipeline.distill.distill_vlm_pipeline",
    "roll.pipeline.dpo.dpo_pipeline",
    "roll.pipeline.rlvr.rlvr_pipeline",
    "roll.pipeline.rlvr.rlvr_vlm_pipeline",
    "roll.pipeline.sft.sft_pipeline",
)
PHASES = {
    "generation": ("step_generate",),
    "reward": ("reward_postprocess", "get_token_reward", "cal_response_norm_rewards", "cal_token_reward"),
    "ref_logprob": ("cal_ref_log_probs", "teacher_forward"),
    "logprob": ("cal_old_log_probs_values", "compute_log_probs"),
    "train": ("step_train", "train_timer", "actor_train", "student_train_step"),
    "weight_sync": ("model_update", "step_model_update", "start_model_update"),
    "checkpoint": ("do_checkpoint",),
    "validation": ("val", "val_step"),
}
