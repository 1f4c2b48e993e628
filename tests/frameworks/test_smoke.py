"""Each dialect renders and reads back a plain request."""

from __future__ import annotations

import pytest

from rlprof_ops import frameworks
from rlprof_ops.request import request_from_dict

WORKER = {"nemo_rl": "megatron_policy_worker", "verl": "actor", "verl-legacy": "actor", "rlinf": "ActorGroup"}


@pytest.mark.parametrize("name", frameworks.NAMES)
def test_round_trip_of_one_range(name: str) -> None:
    request = request_from_dict({"captures": [{"workers": WORKER[name], "steps": "3:5"}]})
    dialect = frameworks.get(name)
    for fmt in dialect.formats:
        rendered = dialect.render(request, fmt)
        assert rendered.losses == ()
        assert dialect.import_(rendered.text, "test").request == request
