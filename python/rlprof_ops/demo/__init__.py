"""A small real GRPO on Ray, CPU only, that uses the runtime as a user would."""
