"""A real Slurm of several nodes on this machine, for tests and by hand. See docs/sandbox.md."""

from tests.sandbox.api import JobState, Sandbox
from tests.sandbox.box import Process
from tests.sandbox.spec import SandboxError

__all__ = ["JobState", "Process", "Sandbox", "SandboxError"]
