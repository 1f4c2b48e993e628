"""The commands of `rlprof`, one thin file each: options, then one call into the room that does the work.

A module `patch_ray.py` holds the command `patch-ray` under the name `command`. A command is one that GROUPS
names: the help and docs/cli.md list it in its group.
"""

# The first of the first three groups are what most people need: a job, a look at it, its answer.
START_WITH = ("submit", "top", "report")
GROUPS = {
    "run": ("submit", "plan", "run", "wrap", "retry", "convert", "demo"),
    "watch": ("top", "ps", "status", "logs", "capture", "attach", "stacks", "dashboard", "stop"),
    "understand": ("report", "hang", "timeline", "diff", "harvest", "export"),
    "site": ("doctor", "init", "clean", "patch-ray", "completion", "schema"),
}
