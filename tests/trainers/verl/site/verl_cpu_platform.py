"""A CPU platform for verl >= 0.9, through verl's public plug-in points.

On with VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=verl_cpu_platform.

Nothing of verl is changed. Ray is given GPUs that do not exist, because verl's resource pools ask for "GPU".
"""

import os
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry


class _Stream:
    """A stream, and an event, on which nothing waits."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False


class _DeviceModule(types.ModuleType):
    """torch.cpu plus the calls of torch.cuda that verl makes."""

    Stream = Event = _Stream

    def is_available(self):
        return True

    def device_count(self):
        return 1

    def current_device(self):
        return "cpu"

    def set_device(self, *_):
        pass

    synchronize = empty_cache = ipc_collect = reset_peak_memory_stats = set_per_process_memory_fraction = (
        set_device
    )

    def memory_allocated(self, *_):
        return 0

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def mem_get_info(self, *_):
        return 0, 1

    def get_rng_state(self, *_):
        return torch.get_rng_state()

    def set_rng_state(self, state, *_):
        torch.set_rng_state(state)

    def get_device_name(self, *_):
        return "cpu"

    def current_stream(self, *_):
        return _Stream()

    def stream(self, *_):
        return _Stream()

    def __getattr__(self, name):
        return getattr(torch.cpu, name)


_MODULE = _DeviceModule("verl_cpu_device")


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _MODULE)

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"  # what verl passes to torch.device() and tensor.to()

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        # verl builds "cpu:gloo,<device>:<this>", which torch refuses for the device cpu ("Duplicate device
        # type cpu"); verl skips that where a group exists, so it is made here.
        if (
            os.environ.get("WG_BACKEND") == "ray"
            and "RANK" in os.environ
            and not torch.distributed.is_initialized()
        ):
            torch.distributed.init_process_group(
                "gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
            )
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg) -> Iterator[None]:
        import nvtx

        with nvtx.annotate(msg):
            yield

    def profiler_start(self):
        _note("profiler_start")

    def profiler_stop(self):
        _note("profiler_stop")

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self):
        return False  # verl then transfers weights through shared memory

    def cudart(self):
        return None


def _note(what: str) -> None:
    print(f"verl_cpu_platform: {what} pid={os.getpid()} t={time.time():.3f}", file=sys.stderr, flush=True)
