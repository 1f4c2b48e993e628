"""Knobs: read once from defaults.env, bad values refused all at once, each with its name, value and what
is allowed.
"""

from __future__ import annotations

import re

import pytest

from rlprof_ops.errors import UsageError
from rlprof_ops.job.knobs import Settings, home, read_env_file, read_knobs, reference


def test_every_knob_has_a_kind_a_meaning_and_a_default_that_is_allowed():
    knobs = read_knobs()

    assert len(knobs) > 50
    assert all(knob.kind and knob.meaning and knob.problem(knob.default) is None for knob in knobs.values())


def test_a_knob_without_its_description_is_refused(tmp_path):
    (tmp_path / "x.env").write_text("A=1\n")
    with pytest.raises(ValueError, match="A has no '#: kind"):
        read_knobs(tmp_path / "x.env")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RAY_LOG_SYNC_FREQUENCY", "abc", "RAY_LOG_SYNC_FREQUENCY='abc': expected a number from 0 to 86400"),
        ("RAY_LOG_SYNC_FREQUENCY", "-1", "expected a number from 0 to 86400"),
        ("RAY_LOG_SYNC_FREQUENCY", "", "expected a number from 0 to 86400"),
        ("PORT", "65536", "PORT='65536': expected a port"),
        ("PORT", "²", "PORT='²': expected a port"),
        ("PORT", "9" * 5000, "expected a port"),
        ("RLPROF_READY_SECONDS", "1_0", "RLPROF_READY_SECONDS='1_0': expected a number from 1 to 86400"),
        ("RLPROF_READY_SECONDS", "１０", "expected a number from 1 to 86400"),
        ("GPUS_PER_NODE", "²", "GPUS_PER_NODE='²': expected a whole number"),
        ("DEDICATED_RAY_HEAD", "yes", "DEDICATED_RAY_HEAD='yes': expected 0 or 1"),
        ("RAY_AUTH_MODE", "tokn", "Did you mean 'token'?"),
        ("GPUS_PER_NODE", "h100:8", "GPUS_PER_NODE='h100:8': expected a whole number"),
        ("RLPROF_RAY_RESOURCES", "[1]", "expected a JSON object"),
        ("MIN_WORKER_PORT", "2000", "set both or neither"),
        ("RLPROF_NODE_ROOT", "scratch", "RLPROF_NODE_ROOT='scratch': expected an absolute path"),
        ("RLPROF_CONTAINER_RUNTIME", "pyxis", "needs an image in CONTAINER"),
        ("RLPROF_TRAINER", "nemo_rll", "Did you mean 'nemo_rl'?"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(name, value, message):
    with pytest.raises(UsageError) as caught:
        Settings.load({name: value})
    assert message in str(caught.value)


def test_the_ports_of_workers_are_a_range():
    with pytest.raises(
        UsageError, match="MIN_WORKER_PORT='3000': expected no more than MAX_WORKER_PORT='2000'"
    ):
        Settings.load({"MIN_WORKER_PORT": "3000", "MAX_WORKER_PORT": "2000"})
    Settings.load({"MIN_WORKER_PORT": "2000", "MAX_WORKER_PORT": "2000"})


def test_all_bad_values_come_in_one_message():
    with pytest.raises(UsageError) as caught:
        Settings.load({"PORT": "x", "RAY_AUTH_MODE": "x"})
    assert len(str(caught.value).splitlines()) == 2


def test_the_environment_wins_over_site_over_trainer_over_defaults(tmp_path):
    site = tmp_path / "site.env"
    site.write_text("RLPROF_TRAINER=nemo_rl\nPORT=7000\nRLPROF_READY_SECONDS=5\nUNKNOWN=1\n")

    settings = Settings.load({"RLPROF_SITE_ENV": str(site), "PORT": "7001"})

    assert settings.number("PORT") == 7001
    assert settings.number("RLPROF_READY_SECONDS") == 5
    assert settings["OMP_NUM_THREADS"] == "16"
    assert settings["RAY_AUTH_MODE"] == "token"


def test_trainer_files_hold_known_knobs_and_settings_of_ray_only():
    """Ray's own are in small letters; tests/host/test_topology.py looks for each of them in Ray itself."""
    knobs = read_knobs()
    for file in (home() / "env").glob("trainer_*.env"):
        others = set(read_env_file(file)) - set(knobs)
        assert [name for name in others if not re.fullmatch("RAY_[a-z_]+", name)] == [], file


def test_the_reference_in_the_docs_is_the_generated_one():
    made = "PYTHONPATH=python python -m rlprof_ops.job.knobs > docs/knobs.md"
    assert (home() / "docs" / "knobs.md").read_text() == reference(), f"make it anew: {made}"
