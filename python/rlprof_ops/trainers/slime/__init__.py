"""slime."""

FOLLOWS = (
    "slime",
    "slime.backends.megatron_utils.actor",
    "slime.observability.timer",
    "slime.ray.actor_group",
)
PHASES = {
    "ref_logprob": ("ref_log_probs", "teacher_log_probs"),
    "logprob": ("log_probs",),
    "train": ("actor_train",),
    "critic_train": ("train_critic",),
    "checkpoint": ("save_model",),
}
