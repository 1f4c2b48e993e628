"""Each dialect renders and reads back a plain request."""

from __future__ import annotations

import pytest

from rlprof_ops import trainers
from rlprof_ops.request import request_from_dict
from rlprof_ops.trainers.verl import FRAMEWORKS as VERL

WORKER = dict.fromkeys(VERL, "actor") | {
    "nemo_rl": "megatron_policy_worker",
    "rlinf": "ActorGroup",
    "verl-0.5": "actor,rollout,ref",  # one profiler for the three
}


@pytest.mark.parametrize("name", trainers.frameworks())
def test_round_trip_of_one_range(name: str) -> None:
    request = request_from_dict({"captures": [{"workers": WORKER[name], "steps": "3:5"}]})
    dialect = trainers.get(name)
    for fmt in dialect.formats:
        rendered = dialect.render(request, fmt)
        assert rendered.losses == ()
        assert dialect.import_(rendered.text, "test").request == request
