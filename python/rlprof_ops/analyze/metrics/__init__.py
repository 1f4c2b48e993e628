"""Metrics: pure functions from columns to numbers, each with its definition and source."""
