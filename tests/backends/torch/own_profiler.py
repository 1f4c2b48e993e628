"""A training script that profiles itself while we do, once for each case; run by test_own_profiler.py, or by
hand: `python own_profiler.py FOLDER 20 < cases.json`.

A case is {"order": …, "where": …, "options": …}. The order's words: `o` is ours, `t` the script's own
torch.profiler, in thread `where` (main or server; sglang, vllm: in main, by their calls), `m` one of its main
thread; `s` starts, `p` stops and exports, `r` prepares (a schedule's warm-up), `b` begins what was prepared.
`next` is the next step of our window, `fork` a child that profiles itself. Each case is a forked child of one
process that has torch loaded.
"""

import functools
import json
import os
import queue
import signal
import sys
import threading
import traceback
import warnings
from pathlib import Path

import torch
import torch._inductor.config  # torch.profiler imports it when it starts: once for all cases

from rlprof_ops.request import request_from_dict
from rlprof_ops.runtime import profiler

warnings.simplefilter("ignore")


def work():
    weights = torch.randn(16, 16, requires_grad=True)
    (weights @ weights).sum().backward()


def forked(action):
    """Run `action` in a child; its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 99
        signal.alarm(60)
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Thread:
    """Calls functions in a thread of its own."""

    def __init__(self, name):
        self._calls, self._results = queue.Queue(), queue.Queue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self):
        while True:
            call = self._calls.get()
            try:
                self._results.put((call(), None))
            except BaseException as error:
                self._results.put((None, error))

    def __call__(self, call):
        self._calls.put(call)
        result, error = self._results.get(timeout=100)
        if error:
            raise error
        return result


class OwnProfiler:
    """The script's own torch.profiler in one thread."""

    suffix = ".json"

    def __init__(self, call, out):
        self._call, self._out, self._profile = call, out, None

    def do(self, action):
        self._call({"s": self._start, "r": self._prepare, "b": self._begin, "p": self._stop}[action])

    def _prepare(self):
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        self._profile.prepare_trace()

    def _begin(self):
        self._profile.start_trace()
        work()

    def _start(self):
        self._prepare()
        self._begin()

    def _stop(self):
        work()
        self._profile.stop()
        path = self._out / f"own-{len(list(self._out.glob('own-*')))}{self.suffix}"
        self._profile.export_chrome_trace(str(path))


class SglangProfiler(OwnProfiler):
    """The calls that SGLang's scheduler makes for `/start_profile` and `/stop_profile` (0.5.23,
    `srt/managers/scheduler_components/profiler_manager.py`), without SGLang."""

    suffix = "-TP-0.trace.json.gz"

    def _start(self):
        self._profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            with_stack=True,
            record_shapes=False,
            on_trace_ready=None,
            experimental_config=None,
        )
        self._profile.start()
        work()


class VllmProfiler(OwnProfiler):
    """The calls that a worker of vLLM 0.5.5 to 0.15.1 makes for `start_profile` and `stop_profile` where
    VLLM_TORCH_PROFILER_DIR is set (0.12.0, `v1/worker/cpu_worker.py`), without vLLM: one profiler, made with
    the worker and started again and again."""

    def __init__(self, call, out):
        super().__init__(call, out)
        self._profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            record_shapes=False,
            with_stack=True,
            on_trace_ready=torch.profiler.tensorboard_trace_handler(str(out), "own-rank-0", use_gzip=False),
        )

    def _start(self):
        self._profile.start()
        work()

    def _stop(self):
        work()
        self._profile.stop()
        self._profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=50)


BY_CALLS = {"sglang": SglangProfiler, "vllm": VllmProfiler}


def profile_once(profiler):
    profiler.do("s")
    profiler.do("p")


def run(case, out):
    capture = {"backend": "torch", "workers": ["policy_worker"], "steps": "2:5", "options": case["options"]}
    os.environ["RLPROF_REQUEST_JSON"] = request_from_dict({"captures": [capture]}).to_json()
    os.environ |= {"RLPROF_NODE_DIR": str(out / "node"), "RLPROF_NODE": "n1"}
    main = OwnProfiler(lambda call: call(), out)
    if case["where"] == "server":
        theirs = OwnProfiler(Thread("server"), out)
    else:
        theirs = main if case["where"] == "main" else BY_CALLS[case["where"]](lambda call: call(), out)
    prof = profiler.from_env("policy_worker", 0)
    step = 1
    prof.start_step(step)
    for word in case["order"].split():
        if word in ("os", "op", "next"):
            if word == "op":
                work()
            prof.stop_step(step)
            step += 100 if word == "op" else 1
            prof.start_step(step)
            with prof.range("train"):
                work()
        elif word == "fork":
            (out / "child").mkdir()
            child = OwnProfiler(lambda call: call(), out / "child")
            assert forked(functools.partial(profile_once, child)) == 0, "the forked child died"
        else:
            (theirs if word[0] == "t" else main).do(word[1])
    prof.close()


def run_all(folder, times):
    codes = []
    for number, case in enumerate(json.load(sys.stdin)):
        for attempt in range(times):
            out = folder / f"{number}-{attempt}"
            out.mkdir(parents=True)
            codes.append(forked(lambda case=case, out=out: run(case, out)))
    print(json.dumps(codes))


run_all(Path(sys.argv[1]), int(sys.argv[2]))
