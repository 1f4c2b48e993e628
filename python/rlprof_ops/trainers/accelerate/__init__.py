"""Accelerate, in a script with a loop of its own."""

FOLLOWS = ("accelerate.accelerator", "accelerate.data_loader", "accelerate.optimizer")
