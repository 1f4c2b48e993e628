"""Captures that are asked for while a job runs, seen from the training process."""
