"""vLLM plug-in (entry point group vllm.general_plugins): a call of verl's that newer versions of vLLM refuse.

verl 0.9.1 stops generation with `AsyncLLM.pause_generation(wait_for_inflight_requests=False)`; vLLM 0.32 has
`mode="abort"` in its place.
"""

import sys


def register() -> None:
    module = sys.modules.get("vllm.v1.engine.async_llm")  # verl's server has imported it; others need not
    if module is None or "pause_generation" in vars(module.AsyncLLM).get("_older_calls", ()):
        return
    pause = module.AsyncLLM.pause_generation

    async def pause_generation(self, *, wait_for_inflight_requests=None, **named):
        if wait_for_inflight_requests is not None:
            named["mode"] = "wait" if wait_for_inflight_requests else "abort"
        await pause(self, **named)

    module.AsyncLLM.pause_generation = pause_generation
    module.AsyncLLM._older_calls = ("pause_generation",)
