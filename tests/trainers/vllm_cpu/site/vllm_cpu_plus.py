"""vLLM platform (entry point group vllm.platform_plugins): what NeMo RL asks of one, on a CPU.

On with VLLM_CPU_PLUS=1.

It accepts sleep mode (the CPU worker only warns), names a Ray resource (else "current platform cpu does not
support ray"), and its worker hides `synchronize_device` from vLLM's conflict check: NeMo RL's worker
extension, written for an older vLLM, has a method of that name.
"""

import os


def register():
    return "vllm_cpu_plus.CpuPlus" if os.environ.get("VLLM_CPU_PLUS") == "1" else None


def _platform():
    from vllm.platforms.cpu import CpuPlatform

    class CpuPlus(CpuPlatform):
        ray_device_key = os.environ.get("VLLM_CPU_RAY_KEY", "CPU")

        def is_sleep_mode_available(self):
            return True

        @classmethod
        def check_and_update_config(cls, vllm_config):
            super().check_and_update_config(vllm_config)
            parallel = vllm_config.parallel_config
            if parallel.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker":
                parallel.worker_cls = "vllm_cpu_plus.Worker"

    return CpuPlus


def _worker():
    import torch
    from vllm.v1.worker.cpu_worker import CPUWorker

    class Hidden(type(CPUWorker)):
        def __getattribute__(cls, name):
            if name == "synchronize_device":
                raise AttributeError(name)
            return super().__getattribute__(name)

    class Worker(CPUWorker, metaclass=Hidden):
        def init_device(self):
            super().init_device()
            self.device = torch.device("cpu", 0)  # NeMo RL's extension reads device.index

    return Worker


_MADE_LATE = {"CpuPlus": _platform, "Worker": _worker}  # importing vLLM here would make it import itself


def __getattr__(name):
    if name not in _MADE_LATE:
        raise AttributeError(name)
    globals()[name] = made = _MADE_LATE[name]()
    return made
