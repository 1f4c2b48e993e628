"""SkyRL."""

FOLLOWS = (
    "skyrl",
    "skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker",
    "skyrl.backends.skyrl_train.workers.megatron.megatron_worker",
    "skyrl.backends.skyrl_train.workers.worker",
    "skyrl.train.fully_async_trainer",
    "skyrl.train.utils.utils",
)
PHASES = {
    "generation": ("generate",),
    "logprob": ("fwd_logprobs_values_reward", "policy_forward"),
    "ref_logprob": ("ref_forward",),
    "values": ("critic_forward",),
    "train": ("train_critic_and_policy", "policy_train", "policy_forward_backward", "policy_optim_step"),
    "critic_train": ("critic_forward_backward", "critic_optim_step"),
    "weight_sync": ("broadcast_to_inference_engines",),
    "checkpoint": ("save_checkpoints", "save_hf_model"),
}
