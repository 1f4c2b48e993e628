"""What to try about a finding: the next look that tells cause from cause, then the usual change.

No advice promises a gain: a finding says what is spent there today and, where a replay tells it, what the
step would lose with it.
"""

from __future__ import annotations

from rlprof_ops.analyze.causes.waiting import ROLLOUT, TRAINING

_ADVICE = {
    "coverage": "`rlprof harvest` and the Coverage section say why each is missing; `rlprof retry` takes only"
    " those windows again.",
    "partial": "`rlprof report` again reads what has come since; at its end the job makes its report itself.",
    "communication": "See Collectives for which group it is: many small messages ask for larger buckets, one"
    " slow group for its links; prefetching (FSDP) or overlapping reduction with backward hides the rest.",
    "pipeline": "More microbatches a step or an interleaved schedule (virtual stages) make bubbles smaller;"
    " where one stage computes longer than the others, move layers away from it.",
    "host": "See Operators (host) for what the host does meanwhile. CUDA graphs, torch.compile or larger"
    " batches launch more at once; a slow loader, logging or .item() in the loop shows up there by name.",
    "copies": "Copies from pinned memory on a stream of their own run beside kernels (pin_memory,"
    " non_blocking=True), at 20 to 55 GB/s over PCIe; a far lower rate means pageable memory or many small"
    " copies. See Copies for directions and phases: what stays on the GPU needs none.",
    "queued": "That is the latency of launches, or another stream that the work waits for: CUDA graphs and"
    " fused kernels (torch.compile) leave fewer gaps. Below a few per cent it is usual. One long gap where"
    " the window begins is work from before it, which no trace holds.",
    "synchronise": "Look for .item(), .cpu(), print() of a tensor and torch.cuda.synchronize() in the loop:"
    " each drains the GPU's queue, which then has to fill again.",
    "kernels": "Matrix products (gemm) and attention usually take most of the computing. Where elementwise,"
    " norm or copying kernels do instead, torch.compile or fused kernels shorten it; how near to the GPU's"
    " peak it is, --model-params tells.",
    "unexplained": "Mark what runs between the phases with prof.range(), in the controller where there is"
    " one, and capture that in the same steps: then the report says which call it is.",
    "untold_gpus": "Windows of rlprof and reports of nsys tell it. A loop's own torch.profiler does with"
    ' prof.add_metadata_json("rlprof_gpus", json.dumps({"0": str(torch.cuda.get_device_properties(0).uuid)}))'
    " before it stops, in each process.",
    "preemption": "Give the cache more memory (vLLM's gpu_memory_utilization, SGLang's mem_fraction_static),"
    " or let fewer requests run at a time (max_num_seqs, max_running_requests).",
    "uneven_replicas": "Deal requests out one by one, to the replica that has the fewest, instead of in fixed"
    " shares; answers whose length can be told from earlier steps go first.",
    "slow_node": "Look at the node: clocks, power and temperature (nvidia-smi -q -d PERFORMANCE), other"
    " processes, its CPUs and links. A window without it (Slurm's --exclude) tells it from its share of the"
    " data.",
    "slow_group": "Look at the links of these nodes: errors and lanes (nvidia-smi nvlink -s and -e, ibstat),"
    " which network cards NCCL chose (NCCL_DEBUG=INFO), a switch that others load. nccl-tests on these nodes"
    " alone tells a link from this job.",
    "pause": "`rlprof stacks` shows where a process stands, and torch's with_stack whose Python it is. A busy"
    " CPU, a lock, logging and files leave no operator in a trace.",
    "gc": "Collect where all ranks do it together: gc.freeze() after the first step, gc.disable(), and"
    " gc.collect() every so many steps between two phases.",
    "loader": "More workers of the DataLoader, prefetch_factor and pin_memory, or tokenising ahead keep it"
    " off the step; storage that is slow on one node shows there alone.",
    "skew": "Look at what that rank does before the collective (a click leads there): more data than the"
    " others, another kernel, or a slower host.",
}
_STRAGGLER = (
    "Look first at its share of the data and then at its node (clocks, temperature, other processes:"
    " nvidia-smi -q -d PERFORMANCE). A window with that rank on another node tells node from data."
)
_ROLLOUT = (
    "Where training has GPUs of its own, it can train on the previous batch meanwhile (asynchronous rollout),"
    " or generation can get more of the GPUs. A few long answers at the end of the phase ask for a limit on"
    " length or for partial rollouts instead."
)
_TRAINING = (
    "Where generation has GPUs of its own, it can run a step ahead (asynchronous rollout), or training can"
    " get more of the GPUs."
)
_ROLLOUT_BESIDE = (
    "Generation runs beside training already, and training waits for it: it can get more of the GPUs. A few"
    " long answers that a batch waits for ask for a limit on length or for partial rollouts."
)
_TRAINING_BESIDE = (
    "Generation runs ahead of training already, as far as it may: training is what the loop waits for. It can"
    " get more of the GPUs."
)
_SYNC = (
    "See Weight sync for where its time goes: larger buckets, a broadcast between GPUs in place of the host,"
    " or overlapping it with what needs no new weights."
)


_TAIL = (
    "Look at the lengths of the answers: a limit on length, partial rollouts that go on in the next step, or"
    " requests dealt out one by one instead of in fixed shares end the phase earlier."
)


def advice_on(kind: str, phase: str = "", asynchronous: bool = False) -> str:
    """Advice for a kind of finding and the phase that it is about; "" where nothing general is true.
    `asynchronous`: generation runs beside training.
    """
    if kind == "straggler":
        return _STRAGGLER
    if kind in ("tail", "last_requests"):
        return _TAIL
    if kind == "weight_sync":
        return _SYNC
    if kind != "bubble":
        return _ADVICE.get(kind, "")
    if phase in ROLLOUT:
        return _ROLLOUT_BESIDE if asynchronous else _ROLLOUT
    if phase in TRAINING:
        return _TRAINING_BESIDE if asynchronous else _TRAINING
    return _SYNC if phase == "weight_sync" else ""
