"""AReaL."""

FOLLOWS = (
    "areal",
    "areal.infra.scheduler.local",
    "areal.trainer.dpo_trainer",
    "areal.trainer.ppo.actor",
    "areal.trainer.rl_trainer",
    "areal.trainer.rw_trainer",
    "areal.trainer.sft_trainer",
    "areal.utils.perf_tracer",
    "areal.utils.stats_tracker",
)
PHASES = {
    "logprob": ("recompute_logp",),
    "ref_logprob": ("ref_logp", "teacher_logp"),
    "values": ("critic_values",),
    "critic_train": ("critic_train_step",),
    "checkpoint": ("save", "checkpoint_for_recover"),
    "validation": ("eval",),
}
