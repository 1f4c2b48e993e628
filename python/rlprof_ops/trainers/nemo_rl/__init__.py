"""NeMo RL."""

FOLLOWS = (
    "nemo_rl",
    "nemo_rl.algorithms.async_utils.replay_buffer",
    "nemo_rl.utils.nsys",
    "nemo_rl.utils.timer",
)
FRAMEWORKS = ("nemo_rl",)
