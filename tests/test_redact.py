"""Secrets stay out of what we write, and what is no secret stays readable."""

from __future__ import annotations

import pytest

from rlprof_ops.redact import is_secret_name, redact_text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("WANDB_API_KEY=abc123 python train.py", "WANDB_API_KEY=*** python train.py"),
        ("export HF_TOKEN='a b'; go", "export HF_TOKEN=***; go"),
        ('python x.py --api-key "s3cr3t" --steps 3', "python x.py --api-key *** --steps 3"),
        ("python x.py --db-password=hunter2", "python x.py --db-password=***"),
        ("git clone https://me:pw@host/x", "git clone https://***@host/x"),
        (
            "python x.py tokenizer=bert max_tokens=512 data.max_token=3",
            "python x.py tokenizer=bert max_tokens=512 data.max_token=3",
        ),
    ],
)
def test_inline_secrets(text, clean):
    assert redact_text(text, env={}) == clean


def test_values_of_secret_variables_vanish_wherever_they_stand():
    env = {"MY_SECRET": "swordfish", "SHORT_KEY": "abc", "RAY_AUTH_TOKEN_PATH": "/run/token"}
    assert redact_text("x swordfish abc /run/token", env) == "x *** abc /run/token"


def test_paths_to_secrets_and_counts_are_no_secrets():
    assert is_secret_name("AWS_SECRET_ACCESS_KEY") and is_secret_name("api-key")
    assert not is_secret_name("RAY_AUTH_TOKEN_PATH") and not is_secret_name("MAX_TOKENS")
