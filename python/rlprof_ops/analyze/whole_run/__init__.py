"""The whole run, from its flight recorder: not only its captured steps."""
