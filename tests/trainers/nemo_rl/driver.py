"""NeMo RL's examples/run_grpo.py, unchanged, in this interpreter: driver.py --config ... (in its source)

Its table of interpreters names `uv run` for some workers even with NEMO_RL_PY_EXECUTABLES_SYSTEM=1; here
there is one environment.
"""

import os
import runpy
import sys

from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY

EXAMPLE = "examples/run_grpo.py"

for actor in ACTOR_ENVIRONMENT_REGISTRY:
    ACTOR_ENVIRONMENT_REGISTRY[actor] = sys.executable
sys.argv[0] = EXAMPLE
sys.path.insert(0, os.path.abspath("examples"))
runpy.run_path(os.path.abspath(EXAMPLE), run_name="__main__")
