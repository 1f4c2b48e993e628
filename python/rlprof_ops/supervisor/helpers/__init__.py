"""Processes that a supervisor runs beside the training: heard or left alone, never waited for."""
