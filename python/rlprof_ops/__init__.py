"""rlprof-ops: profile RL post-training on Ray clusters inside Slurm jobs."""

from rlprof_ops.version import __version__

__all__ = ["__version__"]
