"""Brings reports home: sync, drain, harvest, manifest."""
