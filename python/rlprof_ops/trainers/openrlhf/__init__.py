"""OpenRLHF."""

FOLLOWS = (
    "openrlhf",
    "openrlhf.trainer.ppo_trainer",
    "openrlhf.trainer.ppo_utils.experience_maker",
    "openrlhf.trainer.ppo_utils.samples_generator",
    "openrlhf.trainer.ray.launcher",
    "openrlhf.trainer.ray.ppo_actor",
    "openrlhf.trainer.ray.ppo_critic",
)
