"""Distil: a node reads its finished reports beside the training, so that nobody else has to."""
