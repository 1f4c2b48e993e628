"""Secrets stay out of what we write, and what is no secret stays readable."""

from __future__ import annotations

import html
import itertools
import json
import re
import shlex
import shutil
import subprocess
import textwrap
import time
from base64 import b64decode, b64encode, urlsafe_b64encode
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_there_are_enough_of_each():
    assert len(set(SECRETS)) >= 150 and len(set(INNOCENT)) >= 105


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
        "client-key-data",
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


VALUE = "q7Z/k1+Vw9\"Xr2 L\\m4Tp'é$z"
ENCODINGS = {
    "as it is": lambda v: v,
    "JSON": lambda v: json.dumps({"x": v}),
    "JSON, UTF-8": lambda v: json.dumps({"x": v}, ensure_ascii=False),
    "JSON in JSON": lambda v: json.dumps({"x": json.dumps({"x": v})}),
    "repr": repr,
    "repr of bytes": lambda v: repr(v.encode()),
    "URL": lambda v: quote(v, safe=""),
    "URL, small letters": lambda v: re.sub("%..", lambda match: match[0].lower(), quote(v, safe="")),
    "a form of a page": quote_plus,
    "shlex.quote": shlex.quote,
    "HTML": html.escape,
    "hex": lambda v: v.encode().hex(),
    "HEX": lambda v: v.encode().hex().upper(),
    **{
        f"base64 behind {before!r}": lambda v, before=before: b64encode((before + v).encode()).decode()
        for before in ("", "u", "u:", "me:", "long name:")
    },
    "base64 for URLs": lambda v: urlsafe_b64encode(f"me:{v}:x".encode()).decode(),
}


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize(
    "value", [VALUE, "0123456789abcdef0123456789abcdef01234567", "correct-horse-battery"]
)
def test_a_known_value_is_found_in_every_encoding(name, value):
    shown = ENCODINGS[name](value)
    for text in (f"x {shown} y", f"{shown}", f"line\nnothing {shown}\nlast"):
        masked = redact_text(text, {"MY_SECRET": value})
        core = shown.strip("'\"{}[]=")
        assert not any(core[at : at + 10] in masked for at in range(8, len(core) - 10))
        log = redact_log(text.encode(), {value}).decode()
        assert not any(core[at : at + 10] in log for at in range(8, len(core) - 10))
        assert len(redact_log(text.encode(), {value})) == len(text.encode())


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_a_known_value_is_found_as_bash_prints_it():
    said = subprocess.run(
        ["bash", "-c", "printf '%q\\n' \"$1\"; x=$1; declare -p x; set -x; : \"$1\"", "-", VALUE],
        capture_output=True, check=True,
    )  # fmt: skip
    for data in (said.stdout, said.stderr):
        shown = redact_log(data, {VALUE})
        assert b"Vw9" not in shown and b"m4Tp" not in shown and len(shown) == len(data)


@pytest.mark.parametrize("at", range(1, len(ODD)))
@pytest.mark.parametrize("between", ["\n", "\r\n", "\\\n", '"\n  "', "\n(Worker pid=7) "])
def test_a_known_value_is_found_on_two_lines(at, between):
    text = f"line\nx {ODD[:at]}{between}{ODD[at:]} y\n"
    shown = redact_log(text.encode(), {ODD}).decode()
    assert not [piece for piece in (ODD[:at], ODD[at:]) if len(piece) > 1 and piece in shown]
    assert len(shown) == len(text)


def test_base64_in_lines_is_found():
    value = "correct horse battery staple 0123456789"
    for before in range(76):
        lines = "\n".join(
            textwrap.wrap(b64encode(b"x" * before + value.encode() + b"end of it" * 9).decode(), 76)
        )
        shown = redact_log(lines.encode(), {value}).decode().replace("\n", "")
        held = b64decode(re.sub(r"[^A-Za-z0-9+/=]", "A", shown) + "==")
        assert b"horse battery" not in held


@pytest.mark.parametrize(("form", "secret"), SECRETS, ids=range(len(SECRETS)))
@pytest.mark.parametrize(
    "arrives", ["JSON", "JSON in JSON", "repr", "ray", "trace", "traceback", "environment"]
)
def test_a_secret_is_masked_however_it_arrives(form, secret, arrives):
    text = form.replace("@@@@@@", ODD * 2).replace("@@", ODD)
    ways = {
        "JSON": lambda: json.dumps({"detail": text}),
        "JSON in JSON": lambda: json.dumps({"detail": json.dumps({"detail": text})}),
        "repr": lambda: f"RuntimeError({text!r})",
        "ray": lambda: "\n".join(f"(Worker pid=12, ip=10.0.0.1) {line}" for line in text.split("\n")),
        "trace": lambda: json.dumps({"schemaVersion": 1, "rlprof": text, "traceEvents": []}, indent=1),
        "traceback": lambda: (
            f'  File "x.py", line 3, in f\n{textwrap.indent(text, " " * 4)}\nValueError: bad'
        ),
        "environment": lambda: f"PATH=/usr/bin\nA=1\n{text}\nB=2",
    }
    shown = ways[arrives]()
    assert secret not in redact_text(shown, {})
    masked = redact_log(shown.encode())
    assert secret.encode() not in masked and len(masked) == len(shown.encode())


def test_every_piece_of_a_log_is_masked_as_the_whole():
    """Cut anywhere, with what stands around it."""
    text = "\n".join(form.replace("@@@@@@", ODD * 2).replace("@@", ODD) for form, _ in SECRETS[::6]) + "\n"
    data = text.encode() + PEM
    whole = redact_log(data)
    for cut in range(0, len(data), 7):
        first = redact_log(data[:cut], (), b"", data[cut:])
        second = redact_log(data[cut:], (), data[:cut])
        assert first + second == whole


PEM = (
    b"-----BEGIN RSA PRIVATE KEY-----\n"
    + b"MIIEowIBAAKCAQEA0Z3VS5JJcds3xfn/ygWyF8PbnGy\n" * 20
    + b"x0Zq==\n-----END RSA PRIVATE KEY-----\n"
)


@pytest.mark.filterwarnings(  # its own, not those of what an earlier test of this process has left
    "error", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@given(
    st.lists(
        st.sampled_from(
            [
                "'",
                '"',
                "\\",
                "=",
                ":",
                " ",
                "token",
                "key",
                "-",
                "a",
                "[",
                "{",
                "\n",
                "://",
                "@",
                "%3D",
                "1",
                "\x1b[0m",
                "value",
                "name",
                "curl",
                "login",
                ".",
                "-----BEGIN PRIVATE KEY-----",
            ]
        ),
        max_size=6,
    ),
    st.integers(1, 4000),
)
@settings(max_examples=150, deadline=None)
def test_no_text_takes_long(pieces, times):
    text = ("".join(pieces) * times)[: 1 << 15]
    began = time.process_time()
    shown = redact_log(text.encode())
    assert len(shown) == len(text.encode())
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "line",
    [
        "token " + "\x1b[m" * 175_000,
        "token=[" + "\\" * 500_000,
        "token={a " * 60_000,
        "token=os.x-" * 45_000,
        "token=$(a-" * 50_000,
        "database_url=http://" * 25_000,
        "token='a'" + "\\" * 500_000,
        "eyJ-" * 125_000,
        "-----BEGIN PRIVATE KEY-----" * 20_000,
        "-----BEGIN PRIVATE KEY-----\n" + "\x1b[m" * 175_000 + "!",
        "wandb login " + "--a " * 40 + "!",
        "\n".join(f"{name}_TOKEN= " for name in map("".join, itertools.product("abcdefghij", repeat=4))),
    ],
    ids=range(12),
)
def test_a_line_takes_time_by_its_length(line):
    """By its square, or worse, each takes minutes to years."""
    began = time.process_time()
    assert len(redact_log(line.encode())) == len(line)
    assert time.process_time() - began < 30


def test_what_is_too_long_to_be_looked_at_is_masked():
    for value in ("os.environ", "$(cat-", "get("):
        assert "x" * 90 not in redact_text(f"token={value}{'x' * 2000}", {})
    assert ODD not in redact_text(f"token=['{ODD}", {}) + redact_text(f"token={{a: '{ODD}", {})
    assert ODD not in redact_text(f"\x1b[mtoken={ODD}", {})


def test_a_key_in_another_ends_where_it_did():
    begin, end = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
    text = f'{begin} {begin} {begin} "{ODD}" {end} left {begin} {ODD} {end} right'
    shown = redact_text(text, {})
    assert ODD not in shown and "left" in shown and shown.endswith(" right")
