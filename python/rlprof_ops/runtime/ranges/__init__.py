"""Ranges of training code: decorators, spans, and how a range reaches a profiler."""
