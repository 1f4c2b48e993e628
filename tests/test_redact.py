"""Secrets stay out of what we write, and what is no secret stays readable."""

from __future__ import annotations

import json
import re

import pytest

from rlprof_ops.redact import (
    MASK,
    holds_secret,
    is_secret_name,
    redact_log,
    redact_text,
    secret_values,
    spans,
)
from tests.secret_forms import INNOCENT, ODD, SECRETS


def test_there_are_45_of_each():
    assert (len(SECRETS), len(INNOCENT)) == (45, 45)


@pytest.mark.parametrize(("form", "secret"), SECRETS, ids=range(len(SECRETS)))
@pytest.mark.parametrize("frame", ["{}", "2026-01-01 INFO run: {} (pid 7)", "set -x; {}\n", "args: ['{}']"])
def test_a_secret_is_masked(form, secret, frame):
    text = frame.replace("{}", form.replace("@@@@@@", ODD * 2).replace("@@", ODD))
    shown = redact_text(text, env={})
    assert secret not in shown and MASK in shown
    assert redact_text(shown, env={}) == shown  # once is enough


@pytest.mark.parametrize("text", INNOCENT)
@pytest.mark.parametrize("frame", ["{}", "2026-01-01 INFO run: {} (pid 7)", "set -x; {}\n", "+ {} \\"])
def test_an_innocent_text_is_untouched(text, frame):
    shown = frame.replace("{}", text)
    assert redact_text(shown, env={}) == shown


def test_json_stays_json():
    text = json.dumps({"api_key": ODD, "nested": {"HF_TOKEN": ODD, "steps": [3, 4]}, "max_tokens": 5})
    shown = json.loads(redact_text(text, env={}))
    assert shown == {"api_key": MASK, "nested": {"HF_TOKEN": MASK, "steps": [3, 4]}, "max_tokens": 5}


def test_what_is_around_a_secret_stays():
    assert redact_text(f"WANDB_API_KEY={ODD} python train.py", {}) == "WANDB_API_KEY=*** python train.py"
    assert redact_text("export HF_TOKEN='a b'; go", {}) == "export HF_TOKEN=***; go"
    assert redact_text("git clone https://me:pw@host/x", {}) == "git clone https://***@host/x"


def test_values_of_secret_variables_vanish_wherever_they_stand():
    env = {"MY_SECRET": "swordfish", "SHORT_KEY": "abc", "RAY_AUTH_TOKEN_PATH": "/run/token"}
    assert redact_text("x swordfish abc /run/token", env) == "x *** abc /run/token"


def test_of_an_address_the_login_alone_is_the_secret():
    env = {
        "DATABASE_URL": f"postgres://me:{ODD}@db/x",
        "HTTPS_PROXY": "http://proxy:3128",
        "HF_TOKEN": "auto",
    }
    assert secret_values(env) == {ODD}


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "api-key",
        "GH_PAT",
        "DB_PASS",
        "SSHPASS",
        "MYSQL_PWD",
        "SLURM_JWT",
        "DATABASE_URL",
        "HF_TOKEN",
        "apiKey",
        "clientSecret",
        "trainer.wandb.api_key",
        "NGC_API_KEY",
        "SLACK_WEBHOOK_URL",
        "PGPASSWORD",
    ],
)
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "RAY_AUTH_TOKEN_PATH",
        "MAX_TOKENS",
        "prompt_key",
        "GPU_VENDOR_KEY_PATH",
        "eos_token",
        "num_tokens",
        "key",
        "TOKENIZER",
        "tokens_per_second",
        "reward_fn_key",
        "PATH",
        "COMPASS",
        "PWD",
        "OLDPWD",
    ],
)
def test_names_of_none(name):
    assert not is_secret_name(name)


def test_a_switch_is_no_secret_whatever_its_name():
    assert not holds_secret("HF_TOKEN", "true") and not holds_secret("HF_TOKEN", "${HF_TOKEN}")
    assert (
        redact_text("use_auth_token=True HF_TOKEN=$HF_TOKEN", {}) == "use_auth_token=True HF_TOKEN=$HF_TOKEN"
    )


@pytest.mark.parametrize(("form", "secret"), SECRETS, ids=range(len(SECRETS)))
def test_a_log_keeps_its_length(form, secret):
    line = form.replace("@@@@@@", ODD * 2).replace("@@", ODD)
    data = f"first line\n{line}\nlast é line\n".encode()
    shown = redact_log(data)
    assert secret.encode() not in shown and len(shown) == len(data)
    assert shown.startswith(b"first line\n") and shown.endswith("\nlast é line\n".encode())


def test_a_line_of_a_log_is_masked_as_a_text_is():
    """What a log looks for in a line goes by words that stand in it; a text is looked through for all."""
    for form, _ in SECRETS:
        for other in (*(one for one, _ in SECRETS[:24]), *INNOCENT[:8]):
            line = f"{form} | {other}".replace("@@@@@@", ODD * 2).replace("@@", ODD)
            if "-----BEGIN" in line:
                continue  # of many lines
            expected = line
            for start, end in spans(line):
                expected = expected[:start] + "*" * (end - start) + expected[end:]
            assert redact_log(f"{line}\n".encode()).decode() == f"{expected}\n"


def test_innocent_lines_of_a_log_are_untouched():
    data = "\n".join(INNOCENT).encode() + b"\n"
    assert redact_log(data) == data
    assert redact_log(b"a swordfish b\n", {"swordfish"}) == b"a ********* b\n"


def test_a_long_line_takes_no_time():
    for text in ("a" * 200_000, "key=" * 50_000, "'" * 50_000, "https://" * 20_000, "mysql " * 20_000):
        assert re.sub(r"\*", "", redact_text(text, {})) is not None
