"""vLLM's own OutputProcessor, followed, with outputs made up in the engine's stead: real_processor.py MODEL

Requests `a` and `b` answer one prompt, `c` and both answers of `n2` another; `turn2` follows `b`, and `turn3`
follows `turn2` without its last token.
"""

import sys
import time

import vllm.v1.engine.output_processor as engine
from transformers import AutoTokenizer
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.parallel_sampling import ParentRequest

from rlprof_ops.trainers.vllm import adapter, finished_requests

ONE, OTHER = list(range(5, 80)), list(range(7, 60))


def request(name: str, prompt: list[int], count: int = 1) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=f"{name}-internal",
        external_req_id=name,
        prompt_token_ids=prompt,
        mm_features=None,
        sampling_params=SamplingParams(max_tokens=50, n=count, output_kind=RequestOutputKind.FINAL_ONLY),
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


def main(model: str) -> None:
    adapter.install(engine.__name__, engine)
    processor = engine.OutputProcessor(AutoTokenizer.from_pretrained(model), log_stats=False)

    def answer(name: str, *tokens: int) -> None:
        for left, token in zip(range(len(tokens) - 1, -1, -1), tokens, strict=True):
            reason = None if left else FinishReason.LENGTH
            output = EngineCoreOutput(request_id=name, new_token_ids=[token], finish_reason=reason)
            processor.process_outputs([output], time.monotonic())

    for name, prompt in (("a", ONE), ("b", ONE), ("c", OTHER)):
        processor.add_request(request(name, prompt), None)
    answer("a-internal", 9, 10, 11)
    answer("b-internal", 12, 13, 14, 15)
    answer("c-internal", 9)
    parent = ParentRequest(request("n2", OTHER, 2))
    for index in range(2):
        child = request("n2", OTHER)
        child.request_id, child.sampling_params = parent.get_child_info(index)
        processor.add_request(child, None, parent, index)
        answer(child.request_id, 3, 4)
    time.sleep(0.05)
    processor.add_request(request("turn2", [*ONE, 12, 13, 14, 15, 40, 41]), None)
    answer("turn2-internal", 6, 7)
    time.sleep(0.05)
    processor.add_request(request("turn3", [*ONE, 12, 13, 14, 15, 40, 41, 6, 50]), None)
    answer("turn3-internal", 8)
    log = finished_requests._PROCESS.log
    assert log is not None
    log.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
