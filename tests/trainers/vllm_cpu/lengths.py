"""How long the answers are that `uneven_requests.py` asks its replicas for."""

STEPS = 3
LENGTHS = [4] * 20 + [8, 8, 12, 100]  # in a step of the `LLM`
SERVED = 16  # of them the server gets too
TOOL_S = 0.3  # between the two turns of one sample
