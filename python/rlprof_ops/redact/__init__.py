"""Keeps secrets out of everything that leaves a node.

A secret is known by its name (`HF_TOKEN=…`, `"api_key": …`, `--db-password …`: `secret_names.py`), by its
own shape (`hf_…`, `Bearer …`, `https://user:password@`: `shapes.py`), or because an environment holds it
under such a name: then it is looked for in the encodings that logs use (`known.py`). `scan.py` finds the
places in a text, `log.py` masks logs of any size, piece by piece, `binary_files.py` what a profiler wrote
into its report.
"""

from rlprof_ops.redact.known import holds_secret, own_secrets, secret_values
from rlprof_ops.redact.log import CONTEXT_BYTES, may_hold_secret, open_key_at, redact_log
from rlprof_ops.redact.scan import redact_text, spans
from rlprof_ops.redact.secret_names import MASK, is_secret_name

__all__ = [
    "CONTEXT_BYTES",
    "MASK",
    "holds_secret",
    "is_secret_name",
    "may_hold_secret",
    "open_key_at",
    "own_secrets",
    "redact_log",
    "redact_text",
    "secret_values",
    "spans",
]
