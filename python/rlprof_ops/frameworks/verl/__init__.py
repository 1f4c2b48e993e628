"""verl, both of its schemes: `verl` (`global_profiler.*`) and `verl-legacy` (`trainer.profile_steps`, June
2025).
"""

from __future__ import annotations

from rlprof_ops.frameworks.base import Framework
from rlprof_ops.frameworks.verl.import_config import import_, import_legacy
from rlprof_ops.frameworks.verl.render import render, render_legacy
from rlprof_ops.frameworks.verl.roles import PHASES, WORKERS, world

FRAMEWORK = Framework("verl", "verl", ("hydra", "yaml"), WORKERS, PHASES, render, import_, world)
LEGACY = Framework(
    "verl-legacy",
    "verl (June 2025)",
    ("hydra", "yaml"),
    WORKERS,
    PHASES,
    render_legacy,
    import_legacy,
    world,
)
