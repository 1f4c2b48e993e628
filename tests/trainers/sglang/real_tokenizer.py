"""SGLang's own TokenizerManager, followed, with messages made up in the scheduler's stead.

What takes requests, makes their `meta_info` and aborts is SGLang's code, and so is the clock of its requests.
The rest of what it imports, made for GPUs, stands there by its names alone. Requests `one` and `two` answer
one prompt, `given up` is aborted, and `later` follows `one`. Prints what SGLang says of each, one JSON line.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from rlprof_ops.trainers.sglang import adapter

ONE = list(range(5, 80))
REAL = (
    "sglang.srt.managers.tokenizer_manager",
    "sglang.srt.observability.req_time_stats",
    "sglang.srt.observability.trace",
)
PACKAGES = {name.rpartition(".")[0] for name in REAL} | {"sglang", "sglang.srt"}


class Named(type):
    """A class of any name, which stands for whatever its module has of that name."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(name, (), {})

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and callable(arguments[0]) and not named:
            return arguments[0]  # a decorator
        return super().__call__()


class Absent(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = Named(name, (), {})
        setattr(self, name, made)
        return made


class Rest(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of SGLang that are not `REAL`, and those that nobody has."""

    def __init__(self, first: bool) -> None:
        self.first = first

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        ours = name.startswith("sglang") and name not in REAL
        if ours if self.first else name.partition(".")[0] in ("pybase64", "orjson"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in PACKAGES:
            where = module.__name__.replace(".", "/")
            module.__path__ = [f"{folder}/{where}" for folder in sys.path]


sys.meta_path.insert(0, Rest(first=True))
sys.meta_path.append(Rest(first=False))


real: Any = importlib.import_module("sglang.srt.managers.tokenizer_manager")


class Scheduler:
    """What a TokenizerManager has that it was not made with, and the messages that it gets."""

    def __init__(self) -> None:
        self.manager = made = real.TokenizerManager.__new__(real.TokenizerManager)
        settings = {"weight_version": "1", "tokenizer_worker_num": 1, "skip_tokenizer_init": False}
        settings |= {
            "speculative_algorithm": None,
            "enable_lora": False,
            "batch_notify_size": 16,
            "stream_output": False,
            "dp_size": 1,
        }
        config = SimpleNamespace(**settings)
        vars(made).update(
            server_args=config, rid_to_state={}, enable_metrics=False, enable_trace=False,
            dump_requests_folder="", crash_dump_folder="", disaggregation_mode=None,
            incremental_streaming_output=False,
        )  # fmt: skip
        type(made).config_value = lambda self, name: settings[name]
        type(made)._release_lora_once = lambda self, state: None
        for name in ("get_serving", "get_spec"):
            setattr(real, name, lambda: config)
        for name in ("try_build_beam_search_out_dict",):
            setattr(real, name, lambda *_: None)
        real.unwrap_from_pickle = lambda value: value
        real.is_health_check_generate_req = lambda message: False
        self.batch = next(
            getattr(real, name) for name in ("BatchStrOutput", "BatchStrOut") if hasattr(real, name)
        )
        real.GenerateReqInput = type("GenerateReqInput", (), {})

    def take(self, name: str, prompt: list[int]) -> None:
        """A request comes, as `generate_request` notes it."""
        asked = SimpleNamespace(rid=name, input_ids=prompt, stream=False, is_single=True, log_metrics=False)
        asked.received_time = time.perf_counter()
        if hasattr(self.manager, "_init_req_state"):
            self.manager._init_req_state(asked)
        else:  # in older ones
            state = real.ReqState([], False, asyncio.Event(), asked, created_time=time.time())
            self.manager.rid_to_state[name] = state

    async def give(self, *outputs: tuple[str, list[int], dict[str, Any] | None]) -> list[dict[str, Any]]:
        """A message of the detokenizer: what each request got; returns what SGLang answers."""
        states = [self.manager.rid_to_state[name] for name, *_ in outputs]
        message = self.batch()
        vars(message).update(
            rids=[name for name, *_ in outputs],
            output_ids=[tokens for _, tokens, _ in outputs],
            output_strs=["" for _ in outputs],
            finished_reasons=[reason for *_, reason in outputs],
            prompt_tokens=[len(state.obj.input_ids) for state in states],
            completion_tokens=[
                len(state.output_ids) + len(tokens)
                for state, (_, tokens, _) in zip(states, outputs, strict=True)
            ],
            reasoning_tokens=[0] * len(states),
            cached_tokens=[0] * len(states),
            time_stats=queued(states),
            **dict.fromkeys(("customized_info", "weight_versions", "output_token_sampling_mask")),
        )
        if "retraction_counts" in Path(real.__file__).read_text():
            message.retraction_counts = [1] * len(states)
        done = self.manager._handle_batch_output(message)
        if done is not None:
            await done
        return [told(state) for state in states if state.finished]

    def abort(self, name: str) -> dict[str, Any]:
        state = self.manager.rid_to_state[name]
        message = SimpleNamespace(rid=name, finished_reason=None, abort_message="", weight_versions=None)
        self.manager._handle_abort_req(message)
        return told(state)


def queued(states: list[Any]) -> list[Any] | None:
    """As the scheduler of newer ones tells it with `--enable-metrics`: 0.05 s in its queue."""
    if not hasattr(states[0], "time_stats"):
        return None
    times: Any = importlib.import_module("sglang.srt.observability.req_time_stats")
    made = [times.SchedulerReqTimeStats() for _ in states]
    for each, state in zip(made, states, strict=True):
        each.wait_queue_entry_time = state.time_stats.created_time + 0.01
        each.forward_entry_time = each.wait_queue_entry_time + 0.05
    return made


def told(state: Any) -> dict[str, Any]:
    """What SGLang answers of a request, and its own times, by the wall clock."""
    times = getattr(state, "time_stats", state)
    zero = 0.0 if times is state else time.time() - time.perf_counter()
    return {
        "meta_info": state.out_list[-1]["meta_info"],
        "times": {
            name: getattr(times, name) + zero if getattr(times, name, 0) else None
            for name in ("created_time", "first_token_time", "finished_time")
        },
    }


async def main() -> None:
    adapter.install(real.__name__, real)
    scheduler = Scheduler()
    length = {"type": "length", "length": 6}
    for name, prompt in (("one", ONE), ("two", ONE), ("given up", [9, 9])):
        scheduler.take(name, prompt)
    await asyncio.sleep(0.2)
    said = await scheduler.give(("one", [4, 5, 6], None), ("two", [7], {"type": "stop", "matched": 7}))
    await scheduler.give(("given up", [5], None))
    await asyncio.sleep(0.3)
    said += await scheduler.give(("one", [4, 5, 6], length))
    said.append(scheduler.abort("given up"))
    scheduler.take("later", [*ONE, 4, 5, 6, 4, 5, 6, 8])
    said += await scheduler.give(("later", [3, 3], length))
    print(json.dumps(said), flush=True)
    adapter._log().flush()


if __name__ == "__main__":
    asyncio.run(main())
