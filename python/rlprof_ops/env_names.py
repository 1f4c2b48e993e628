"""The names of the environment variables by which the processes of a job tell each other things.

What each means stands in docs/contracts.md. A knob of a job is in env/defaults.env; it is here too where
processes read it from their environment, not from `Settings`.
"""

from __future__ import annotations

# Set by the batch script, or by `RayJob` in its place, for the supervisor of a node.
JOB = "RLPROF_JOB"
NODE = "RLPROF_NODE"
NODES = "RLPROF_NODES"
RUN_DIR = "RLPROF_RUN_DIR"
HEAD_IP = "RLPROF_HEAD_IP"
GCS_PORT = "RLPROF_GCS_PORT"
CONTROL_PORT_CHOSEN = "RLPROF_CONTROL_PORT_CHOSEN"
BEGAN = "RLPROF_BEGAN"
KILL_WAIT = "RLPROF_KILL_WAIT"
SLURM_COUNTS_GPUS = "RLPROF_SLURM_COUNTS_GPUS"
STEP_CODE = "RLPROF_STEP_CODE"
EARLIER_ATTEMPTS = "RLPROF_EARLIER_ATTEMPTS"

# Set by the supervisor for Ray, its workers and the driver; JOB, NODE and RUN_DIR go on.
NODE_DIR = "RLPROF_NODE_DIR"
RAY_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # Ray's own
OF_ONE_NODE = (NODE, NODE_DIR, RAY_TOKEN_PATH)  # whoever hands its variables on hands on its own node's
REQUEST_JSON = "RLPROF_REQUEST_JSON"
WHOLE_REQUEST_JSON = "RLPROF_WHOLE_REQUEST_JSON"
LEADS = "RLPROF_LEADS"
TRAINERS = "RLPROF_TRAINERS"

# Set by the runtime-env plugin and `rlprof wrap` for one process.
WORKER = "RLPROF_WORKER"
RANK = "RLPROF_RANK"
NSYS_SESSION = "RLPROF_NSYS_SESSION"
NSYS_RANGE = "RLPROF_NSYS_RANGE"
SESSION_OPTIONS = "RLPROF_SESSION_OPTIONS"
NOT_WRAPPED = "RLPROF_NOT_WRAPPED"
SESSION_PID = "RLPROF_SESSION_PID"  # set by the process for its children
WRAP_RANKS = "RLPROF_WRAP_RANKS"  # set by `rlprof wrap` for a launcher
TORCH_FR_FILE = "RLPROF_TORCH_FR_FILE"  # set by the process: what it has set as torch's own variable

# Knobs that the supervisor hands on to every process.
NSYS = "RLPROF_NSYS"
ADAPTERS = "RLPROF_ADAPTERS"
ON_DEMAND = "RLPROF_ON_DEMAND"
RECORD = "RLPROF_RECORD"
ON_HANG = "RLPROF_ON_HANG"
TRACKERS = "RLPROF_TRACKERS"
METRICS = "RLPROF_METRICS"
TORCH_FR = "RLPROF_TORCH_FR"
ENGINE_REQUESTS = "RLPROF_ENGINE_REQUESTS"
OPEN_WAIT_SECONDS = "RLPROF_OPEN_WAIT_SECONDS"
CLOSE_WAIT_SECONDS = "RLPROF_CLOSE_WAIT_SECONDS"
KEEP_FREE_MIB = "RLPROF_SYNC_KEEP_FREE_MIB"
HANDED_ON = (
    NSYS,
    ADAPTERS,
    ON_DEMAND,
    RECORD,
    ON_HANG,
    TRACKERS,
    METRICS,
    TORCH_FR,
    ENGINE_REQUESTS,
    OPEN_WAIT_SECONDS,
    CLOSE_WAIT_SECONDS,
    KEEP_FREE_MIB,
)

# Knobs that commands and training processes read as they find them.
HOME = "RLPROF_HOME"
REQUEST = "RLPROF_REQUEST"

# Read where somebody sets them; nothing of ours does.
ROCPROF_SYS = "RLPROF_ROCPROF_SYS"
CHECK_TIMEOUT_S = "RLPROF_CHECK_TIMEOUT_S"
ENGINES = "RLPROF_ENGINES"
NVML = "RLPROF_NVML"
SCANNER = "RLPROF_SCANNER"

# NeMo RL's own request, by backend (its docs/nsys-profiling.md and the torch profiler's page).
NRL_STEP_RANGE = {"nsight": "NRL_NSYS_PROFILE_STEP_RANGE", "torch": "NRL_TORCH_PROFILE_STEP_RANGE"}
NRL_WORKER_PATTERNS = {"nsight": "NRL_NSYS_WORKER_PATTERNS", "torch": "NRL_TORCH_PROFILE_WORKER_PATTERNS"}
NRL_EXTRA_OPTIONS = {"nsight": "NRL_NSYS_EXTRA_OPTIONS"}
NRL_FOLDER = {"torch": "NRL_TORCH_PROFILE_DIR"}
NRL_DEFAULT_FOLDER = {"torch": "torch_profiler_trace"}
