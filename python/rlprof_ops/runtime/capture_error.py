"""`CaptureError` under its old place."""

from rlprof_ops.backends.contract import CaptureError as CaptureError
from rlprof_ops.backends.contract import Yielded as Yielded
