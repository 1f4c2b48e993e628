"""RLinf."""

FOLLOWS = (
    "rlinf",
    "rlinf.scheduler.cluster.cluster",
    "rlinf.scheduler.worker.worker",
    "rlinf.scheduler.worker.worker_group",
    "rlinf.utils.distributed",
)
FRAMEWORKS = ("rlinf",)
