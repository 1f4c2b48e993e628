"""How long the answers are that `uneven_requests.py` and `ray_replicas.py` ask their replicas for."""

STEPS = 3
LENGTHS = [4] * 20 + [8, 8, 12, 100]  # in a step of the `LLM`
SERVED = 16  # of them the server gets too
TOOL_S = 0.15  # between the two turns of one sample, which ends long before the planted one

# In a step of `ray_replicas.py`: of the first replica, with a small cache, and of the second one.
PLANTED = 280  # so long that the one with a tool is over before it
LONG = [40, 36, 40, 36, 40]
SHORT = [4, 8, 6, 12]
