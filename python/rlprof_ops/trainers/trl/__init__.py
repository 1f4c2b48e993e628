"""TRL, and any `transformers.Trainer`."""

FOLLOWS = ("trl", "trl.extras.profiling", "transformers.trainer", "transformers.trainer_callback")
