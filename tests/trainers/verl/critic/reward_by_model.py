"""The reward of a verl run whose reward model is a vLLM server of its own: asked for a few tokens."""

import aiohttp


async def compute_score(
    data_source, solution_str, ground_truth, extra_info=None, reward_router_address="", model="", **_
):
    asked = {"model": model, "prompt": solution_str or "?", "max_tokens": 4, "temperature": 0.0}
    url = f"http://{reward_router_address}/v1/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=asked) as answer:
        answer.raise_for_status()
        judged = (await answer.json())["choices"][0]["text"]
    return len(set(solution_str + judged)) / 100.0
