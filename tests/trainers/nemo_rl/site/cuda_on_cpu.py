"""CUDA_ON_CPU=1: the torch.cuda calls that NeMo RL's workers hard-code work on a CPU.

Imported at start-up through a .pth file, it acts just before the first line of `nemo_rl` runs. It changes
torch and pynvml, nothing of NeMo RL: cuda is cpu, NCCL is gloo, CUDA IPC is POSIX shared memory, and NVTX
ranges go to the `nvtx` package, which needs no GPU.
"""

import importlib.abc
import importlib.util
import os
import sys
import threading
import time


class _OnImport(importlib.abc.MetaPathFinder):
    """Calls `install` when `nemo_rl` is about to be imported."""

    looking = False

    def find_spec(self, name, path=None, target=None):
        if name != "nemo_rl" or self.looking:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec:
            sys.meta_path.remove(self)
            install()
        return spec


def install() -> None:
    _devices()
    _cuda_module()
    _distributed()
    _ipc()
    _nvml()


def _cpu(device):
    import torch

    if isinstance(device, str) and device.startswith("cuda"):
        return "cpu"
    if isinstance(device, torch.device) and device.type == "cuda":
        return torch.device("cpu")
    return device


def _nothing(*args, **kwargs):
    return None


def _devices() -> None:
    """Tensors and modules that are sent to a GPU stay where they are."""
    import torch
    from torch.overrides import TorchFunctionMode

    class CudaIsCpu(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
                return args[0]
            if "device" in kwargs:
                kwargs["device"] = _cpu(kwargs["device"])
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            if func is torch.Tensor.to:
                args = tuple(_cpu(argument) for argument in args)
            return func(*args, **kwargs)

    def enter():
        CudaIsCpu().__enter__()

    enter()
    run = threading.Thread.run

    def run_in_mode(self):
        enter()  # a function mode is of one thread
        return run(self)

    threading.Thread.run = run_in_mode

    autocast_init, module_to = torch.autocast.__init__, torch.nn.Module.to
    torch.autocast.__init__ = lambda self, device_type, *args, **kwargs: autocast_init(
        self, _cpu(device_type), *args, **kwargs
    )
    torch.nn.Module.cuda = lambda self, *args: self
    torch.nn.Module.to = lambda self, *args, **kwargs: module_to(
        self, *map(_cpu, args), **{key: _cpu(value) for key, value in kwargs.items()}
    )


class _Stream:
    """A stream, and an event, on which nothing waits."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False

    def __getattr__(self, name):
        return _nothing


def _answer(value):
    """A function of its own for each name: dynamo refuses one function under two names."""
    return lambda *args, **kwargs: value


def _cuda_module() -> None:
    import nvtx
    import torch

    cuda = torch.cuda
    for name in (
        "synchronize",
        "empty_cache",
        "set_device",
        "ipc_collect",
        "reset_peak_memory_stats",
        "manual_seed",
        "manual_seed_all",
        "init",
        "_lazy_init",
    ):
        setattr(cuda, name, _answer(None))
    for name in (
        "memory_allocated",
        "memory_reserved",
        "max_memory_allocated",
        "max_memory_reserved",
        "current_device",
    ):
        setattr(cuda, name, _answer(0))
    cuda.device_count = _answer(1)
    cuda.get_device_name = _answer("cpu")
    cuda.get_device_capability = _answer((0, 0))
    cuda.mem_get_info = _answer((1 << 30, 1 << 31))
    cuda.memory_stats = _answer({})
    cuda.current_stream = lambda *args: _Stream()
    cuda.stream = lambda *args: _Stream()
    cuda.Stream = cuda.Event = _Stream
    cuda.get_rng_state = lambda *args: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *args: torch.set_rng_state(state)
    cuda.nvtx.range_push = lambda message: nvtx.push_range(str(message))
    cuda.nvtx.range_pop = lambda: nvtx.pop_range()
    cuda.profiler.start, cuda.profiler.stop = _noting("start"), _noting("stop")


def _noting(what):
    def note(*args, **kwargs):
        print(
            f"cuda_on_cpu: torch.cuda.profiler.{what} pid={os.getpid()} t={time.time():.3f}",
            file=sys.stderr,
            flush=True,
        )

    return note


def _distributed() -> None:
    import torch.distributed
    from torch.distributed import device_mesh

    init_group, init_mesh = torch.distributed.init_process_group, device_mesh.init_device_mesh

    def init_process_group(backend=None, *args, **kwargs):
        kwargs.pop("device_id", None)
        return init_group("gloo" if backend and "nccl" in backend else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group
    device_mesh.init_device_mesh = lambda device, *args, **kwargs: init_mesh(_cpu(device), *args, **kwargs)
    torch.distributed.init_device_mesh = device_mesh.init_device_mesh


def _ipc() -> None:
    """`reduce_tensor` and `rebuild_cuda_tensor`, as NeMo RL uses them to hand weights to the engine."""
    from multiprocessing import shared_memory

    import torch
    import torch.multiprocessing.reductions as reductions

    kept = {}
    reduce_any = reductions.reduce_tensor

    def rebuild_cuda_tensor(name, size, *_):
        segment = shared_memory.SharedMemory(name=name)
        return torch.frombuffer(bytearray(segment.buf[:size]), dtype=torch.uint8)

    def reduce_tensor(tensor):
        if tensor.device.type != "cpu" or tensor.dtype != torch.uint8:
            return reduce_any(tensor)
        size = tensor.numel()
        segment = kept.get(tensor.data_ptr())
        if segment is None or segment.size < size:
            segment = kept[tensor.data_ptr()] = shared_memory.SharedMemory(create=True, size=max(1, size))
        torch.frombuffer(segment.buf, dtype=torch.uint8, count=size).copy_(tensor)
        return rebuild_cuda_tensor, (segment.name, size, None, None, None, None, 0)

    reductions.reduce_tensor, reductions.rebuild_cuda_tensor = reduce_tensor, rebuild_cuda_tensor


def _nvml() -> None:
    import pynvml

    class Memory:
        free, total, used = 64 << 20, 1 << 30, 0

    pynvml.nvmlInit = pynvml.nvmlShutdown = _nothing
    pynvml.nvmlDeviceGetHandleByIndex = lambda index: index
    pynvml.nvmlDeviceGetUUID = lambda handle: f"GPU-{os.environ.get('RAY_JOB_ID', 'cpu')}-{handle}"
    pynvml.nvmlDeviceGetMemoryInfo = lambda handle: Memory
    pynvml.nvmlDeviceGetCount = lambda: 1


if os.environ.get("CUDA_ON_CPU") == "1":
    sys.meta_path.insert(0, _OnImport())
