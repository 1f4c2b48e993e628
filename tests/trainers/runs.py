"""The command of a small unmodified run, trainer by trainer.

    run = trainer_run("verl", work=tmp_path, steps=3)
    done = subprocess.run(run.argv, cwd=run.cwd, env=run.environment(), ...)
    step_times("verl", done.stdout)                        # {1: 12.8, 2: 0.9, 3: 0.9}

Everything is as small as the trainer allows: one worker of each kind, two layers, 16 tokens, one thread a
process.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.trainers.environments import HERE, Installed, ensure

FROM_ENVIRONMENT = "$RAY_ADDRESS"
"""As `ray_address`: the Ray that RAY_ADDRESS names where `shell()` is run, e.g. in a job of ray.sub."""

NAMES = ("trl", "verl", "rlinf", "nemo_rl", "skyrl")


@dataclass(frozen=True)
class TrainerRun:
    """One command; `env` is what it needs beyond the environment that it is run in."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path

    def environment(self) -> dict[str, str]:
        """The whole environment: this process's without what would leak into a trainer, and `env`."""
        leaking = ("RAY_", "PYTEST_", "SLURM_", "RLPROF_", "NRL_", "VLLM_", "VERL_")
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(leaking) and name != "PYTHONPATH"
        }
        return {**kept, **self.env}

    def shell(self) -> str:
        """The same as one line for a shell, e.g. for COMMAND of ray.sub."""
        pairs = [f"{name}={value}" for name, value in self.env.items()]
        return f"cd {shlex.quote(str(self.cwd))} && exec env {shlex.join([*pairs, *self.argv])}"


def trainer_run(
    name: str,
    *,
    work: Path,
    steps: int = 3,
    ray_address: str | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
) -> TrainerRun:
    """The command of one small run; its environment is built first when it is not there yet.

    Args:
        name: One of `NAMES`.
        work: An existing folder: the working directory, and where the trainer writes. NeMo RL runs in its
            source instead.
        steps: Training steps.
        ray_address: None starts a Ray of its own around the command; an address, or `FROM_ENVIRONMENT`, joins
            that one, which must have been started by this environment's `ray` with `--num-gpus=1`. TRL has
            no Ray.
        env: Variables on top, e.g. PYTHONPATH=<checkout>/python (which is put before the trainer's own).
        overrides: Further arguments in the trainer's own syntax (TRL: KEY=JSON of GRPOConfig).

    Raises:
        BuildError: The environment cannot be built.
    """
    installed = ensure(name)
    words, variables, cwd = _BUILDERS[name](installed, work, steps)
    python = [str(installed.python), "-P"]
    extra = dict(env or {})
    if extra.get("PYTHONPATH") and "PYTHONPATH" in variables:
        extra["PYTHONPATH"] += f":{variables['PYTHONPATH']}"
    if name == "verl":
        words += _for_verl_workers({**variables, **extra})
    argv = [*python, *words, *overrides]
    if name != "trl":
        if ray_address is None:
            argv = [*python, str(HERE / "with_ray.py"), "--", *argv]
            variables["RAY_AUTH_MODE"] = "disabled"
        elif ray_address != FROM_ENVIRONMENT:
            variables["RAY_ADDRESS"] = ray_address
    return TrainerRun(tuple(argv), {**_common(installed), **variables, **extra}, cwd)


def step_times(name: str, output: str) -> dict[int, float]:
    """Seconds of each step, read from what the trainer printed."""
    return dict(steps_of(name, output))


def steps_of(name: str, output: str) -> list[tuple[int, float]]:
    """Number and seconds of each step, in order; NeMo RL counts anew in each epoch."""
    steps = _STEP_PATTERNS[name].finditer(re.sub(r"\x1b\[[0-9;]*m", "", output))
    return [(int(step["step"]), float(step["seconds"])) for step in steps]


def _common(installed: Installed) -> dict[str, str]:
    return {
        "PATH": f"{installed.bin}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHINDUCTOR_CACHE_DIR": str(installed.folder / "inductor"),
        "VLLM_CACHE_ROOT": str(installed.folder / "vllm"),
        "RAY_DEDUP_LOGS": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        # Otherwise a worker for each CPU of the Ray is started before the first one is needed.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_uv_run_runtime_env": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray runs its workers at niceness 15: beside anything else on the machine they would hardly move.
        "RAY_worker_niceness": "0",
    }


_VLLM = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}

_Parts = tuple[list[str], dict[str, str], Path]


def _trl(installed: Installed, work: Path, steps: int) -> _Parts:
    return [str(HERE / "trl" / "grpo.py"), str(installed.data / "model"), str(steps)], {}, work


def _verl(installed: Installed, work: Path, steps: int) -> _Parts:
    prompts, model = installed.data / "prompts.parquet", installed.data / "model"
    role = "actor_rollout_ref"
    words = f"""
        -m verl.trainer.main_ppo
        algorithm.adv_estimator=grpo
        algorithm.use_kl_in_reward=False
        data.train_files={prompts}
        data.val_files={prompts}
        data.train_batch_size=4
        data.max_prompt_length=64
        data.max_response_length=16
        data.dataloader_num_workers=0
        data.filter_overlong_prompts=False
        {role}.model.path={model}
        {role}.model.use_remove_padding=False
        +{role}.model.override_config.attn_implementation=sdpa
        {role}.model.enable_gradient_checkpointing=False
        {role}.actor.strategy=fsdp2
        {role}.actor.use_torch_compile=False
        {role}.actor.fsdp_config.use_torch_compile=False
        {role}.actor.ppo_mini_batch_size=4
        {role}.actor.ppo_micro_batch_size_per_gpu=4
        {role}.actor.optim.lr=1e-3
        {role}.actor.use_kl_loss=False
        {role}.rollout.name=vllm
        {role}.rollout.n=4
        {role}.rollout.dtype=float32
        {role}.rollout.tensor_model_parallel_size=1
        {role}.rollout.enforce_eager=True
        {role}.rollout.free_cache_engine=False
        +{role}.rollout.enable_sleep_mode=False
        {role}.rollout.max_model_len=128
        {role}.rollout.max_num_seqs=16
        {role}.rollout.max_num_batched_tokens=512
        {role}.rollout.log_prob_micro_batch_size_per_gpu=4
        {role}.rollout.load_format=auto
        {role}.rollout.checkpoint_engine.update_weights_bucket_megabytes=16
        {role}.rollout.agent.num_workers=1
        reward.num_workers=1
        reward.custom_reward_function.path={HERE}/verl/reward.py
        reward.custom_reward_function.name=compute_score
        trainer.n_gpus_per_node=1
        trainer.nnodes=1
        trainer.logger=[console]
        trainer.val_before_train=False
        trainer.test_freq=-1
        trainer.save_freq=-1
        trainer.total_training_steps={steps}
        trainer.total_epochs=1
        trainer.device=cpu
        trainer.resume_mode=disable
        transfer_queue.backend.SimpleStorage.num_data_storage_units=1
    """.split()
    variables = {
        **_VLLM,
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "verl_cpu_platform",
        "VERL_ENGINE_DEVICE": "cuda",  # picks the FSDP engine; the device itself is the platform's
        "HYDRA_FULL_ERROR": "1",
    }
    return words, variables, work


def _for_verl_workers(variables: Mapping[str, str]) -> list[str]:
    """In a Ray that somebody else has started, workers have the variables of the runtime environment only."""
    return [
        f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}='{value}'"
        for name, value in variables.items()
        if name != "RAY_ADDRESS"
    ]


def _rlinf(installed: Installed, work: Path, steps: int) -> _Parts:
    return [str(HERE / "rlinf" / "toy.py"), str(steps)], {}, work


def _nemo_rl(installed: Installed, work: Path, steps: int) -> _Parts:
    model = installed.data / "model"
    words = f"""
        {HERE}/nemo_rl/driver.py
        --config examples/configs/grpo_math_1B.yaml
        policy.model_name={model}
        policy.tokenizer.name={model}
        grpo.num_prompts_per_step=2
        grpo.num_generations_per_prompt=4
        grpo.max_num_steps={steps}
        grpo.val_period=0
        policy.train_global_batch_size=8
        policy.train_micro_batch_size=4
        policy.max_total_sequence_length=96
        policy.precision=float32
        policy.dtensor_cfg._v2=false
        policy.sequence_packing.enabled=false
        policy.dynamic_batching.enabled=false
        policy.generation.max_new_tokens=16
        policy.generation.vllm_cfg.enforce_eager=true
        policy.generation.vllm_cfg.enable_vllm_metrics_logger=false
        +policy.generation.vllm_kwargs.max_num_seqs=8
        checkpointing.enabled=false
        logger.monitor_gpus=false
        logger.log_dir={work}/logs
        env.math.num_workers=1
        data.num_workers=0
        data.train.dataset_name=ResponseDataset
        +data.train.data_path={installed.data}/prompts.jsonl
        data.train.split_validation_size=0
        data.default.prompt_file=null
        cluster.gpus_per_node=1
    """.split()
    variables = {
        **_VLLM,
        "PYTHONPATH": str(installed.source),
        "CUDA_ON_CPU": "1",
        "VLLM_CPU_PLUS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "NEMO_RL_PY_EXECUTABLES_SYSTEM": "1",
        "NRL_DISABLE_NUMA_BINDING": "1",
        "NRL_IGNORE_VERSION_MISMATCH": "1",
    }
    return words, variables, installed.source


def _skyrl(installed: Installed, work: Path, steps: int) -> _Parts:
    variables = {
        "PYTHONPATH": str(installed.source),
        "SKYRL": str(installed.source),
        "EMPTY_PACKAGES": "flash_attn,vllm",
    }
    return [str(HERE / "skyrl" / "loop.py"), str(steps)], variables, work


_BUILDERS = {"trl": _trl, "verl": _verl, "rlinf": _rlinf, "nemo_rl": _nemo_rl, "skyrl": _skyrl}

_OURS = re.compile(r"\bstep (?P<step>\d+) took (?P<seconds>[\d.]+) s")
_STEP_PATTERNS = {
    "trl": _OURS,
    "rlinf": _OURS,
    "verl": re.compile(r"step:(?P<step>\d+) - .*?timing_s/step:(?:np\.float64\()?(?P<seconds>[\d.]+)"),
    "skyrl": re.compile(r'"step": (?P<step>\d+), "timings": \{[^}]*"step": (?P<seconds>[\d.]+)'),
    "nemo_rl": re.compile(r"Step (?P<step>\d+)/\d+.*?Total step time: (?P<seconds>[\d.]+)s", re.DOTALL),
}


def main() -> int:
    """`python -m tests.trainers.runs NAME [STEPS [OVERRIDE ...]]` runs one in a temporary folder."""
    import subprocess
    import tempfile

    name, steps, *overrides = [*sys.argv[1:], "3"] if len(sys.argv) == 2 else sys.argv[1:]
    with tempfile.TemporaryDirectory() as work:
        run = trainer_run(name, work=Path(work), steps=int(steps), overrides=overrides)
        return subprocess.run(run.argv, cwd=run.cwd, env=run.environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
