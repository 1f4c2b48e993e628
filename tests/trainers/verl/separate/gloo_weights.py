"""A checkpoint engine of verl's for machines without a GPU: weights go from the actor to the rollout workers
by gloo, in the place of the NCCL broadcast that the asynchronous trainers ask for.

On with `rollout.checkpoint_engine.backend=gloo`, `.custom_backend_module=gloo_weights`, verl's own way in.
"""

import datetime
import pickle

import ray
import torch
import torch.distributed
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

DEADLINE = datetime.timedelta(seconds=120)


@CheckpointEngineRegistry.register("gloo")
class GlooCheckpointEngine(CheckpointEngine):
    def __init__(self, bucket_size, is_master=False):
        self.is_master, self.store, self.group = is_master, None, None

    def prepare(self):
        if not self.is_master:
            return None
        host = ray.util.get_node_ip_address()
        self.store = torch.distributed.TCPStore(
            host, 0, is_master=True, wait_for_workers=False, timeout=DEADLINE
        )
        return host, self.store.port

    @classmethod
    def build_topology(cls, actors, rollouts, metadata):
        def of(ranks):
            return {"rank": ranks, "size": [rollouts + 1] * len(ranks), "place": [metadata[0]] * len(ranks)}

        return of([0] + [-1] * (actors - 1)), of(list(range(1, rollouts + 1)))

    def init_process_group(self, rank, size, place):
        if rank < 0:
            return
        if self.store is None:
            self.store = torch.distributed.TCPStore(*place, is_master=False, timeout=DEADLINE)
        self.group = torch.distributed.ProcessGroupGloo(self.store, rank, size, DEADLINE)

    def finalize(self):
        self.store = self.group = None

    async def send_weights(self, weights, global_steps=None):
        for name, weight in weights:
            if self.group is not None:  # the other ranks of the actor take part in the gathering alone
                self._share(pickle.dumps((name, weight.shape, weight.dtype)))
                self._broadcast(weight.detach().contiguous())
        if self.group is not None:
            self._share(b"")

    async def receive_weights(self, global_steps=None):
        while told := self._share(None):
            name, shape, dtype = pickle.loads(told)
            weight = torch.empty(shape, dtype=dtype)
            self._broadcast(weight)
            yield name, weight

    def _share(self, content):
        """Bytes of the actor to everybody."""
        size = torch.tensor([len(content or b"")])
        self._broadcast(size)
        if not int(size):
            return b""
        block = torch.frombuffer(bytearray(content or bytes(int(size))), dtype=torch.uint8)
        self._broadcast(block)
        return block.numpy().tobytes()

    def _broadcast(self, tensor):
        self.group.broadcast([tensor], torch.distributed.BroadcastOptions()).wait()
