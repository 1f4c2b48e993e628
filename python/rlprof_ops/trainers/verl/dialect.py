"""verl, every scheme that its releases have read: `verl` (0.9), `verl-0.8`, `verl-0.6`, `verl-0.5`,
`verl-0.4`, and
`verl-legacy`, the document of June 2025.
"""

from __future__ import annotations

from rlprof_ops.extras import installed_version
from rlprof_ops.runtime.process.worker_identity import CONTROLLER
from rlprof_ops.trainers.dialects import Framework
from rlprof_ops.trainers.verl.import_verl import importer
from rlprof_ops.trainers.verl.render_verl import renderer
from rlprof_ops.trainers.verl.schemes import SCHEMES, scheme_of_version
from rlprof_ops.trainers.verl.verl_names import PHASES, WORKERS
from rlprof_ops.trainers.verl.verl_placement import world


def framework(name: str, installed: str | None = None) -> Framework:
    """The dialect of one scheme; `verl` is that of the installed verl, and of 0.9 where none is installed.

    Args:
        installed: the version that counts as installed; None asks this Python.
    """
    scheme, note = SCHEMES[name], ""
    version = installed_version("verl") if installed is None else installed
    if name == "verl" and version:
        scheme = scheme_of_version(version)
        note = f"verl {version} is installed, which reads the scheme of {scheme.releases}"
    workers = tuple(w for w in WORKERS if w.name in scheme.paths or w.name == CONTROLLER)
    title = "verl" if name == "verl" else f"verl ({scheme.releases})"
    return Framework(
        name,
        title,
        ("hydra", "yaml"),
        workers,
        PHASES,
        renderer(scheme, note),
        importer(scheme),
        world,
    )
