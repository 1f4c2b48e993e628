"""verl, before V1 and since."""

FOLLOWS = (
    "verl",
    "verl.experimental.fully_async_policy.detach_utils",
    "verl.single_controller.ray.base",
    "verl.trainer.ppo.v1.trainer_base",
    "verl.utils.profiler.performance",
    "verl.utils.profiler.profile",
    "verl.workers.engine.automodel.transformer_impl",
    "verl.workers.engine.fsdp.transformer_impl",
    "verl.workers.engine.megatron.transformer_impl",
    "verl.workers.engine.torchtitan.transformer_impl",
    "verl.workers.engine_workers",
)
FRAMEWORKS = ("verl", "verl-0.8", "verl-0.6", "verl-0.5", "verl-0.4", "verl-legacy")
