"""Secrets are taken out of nsys reports, and the reports stay readable."""

import os
import subprocess
import sys

import pytest

from rlprof_ops.collect.contents import look
from rlprof_ops.collect.mask import found_secrets, mask_file, secret_values
from rlprof_ops.collect.syncer import Syncer

SECRET = "hf_abcdefgh12345"


def masked(tmp_path, data, values=()):
    path = tmp_path / "report"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDWR)
    try:
        mask_file(fd, values)
    finally:
        os.close(fd)
    return path.read_bytes()


def message(name, value):
    length = bytes([len(value)]) if len(value) < 128 else bytes([len(value) & 0x7F | 0x80, len(value) >> 7])
    return b"\n" + bytes([len(name)]) + name + b"\x12" + length + value


@pytest.mark.parametrize(
    ("data", "secrets"),
    [
        (b"\0HF_TOKEN=hf_abcdefgh\0PATH=/bin\0", {b"hf_abcdefgh"}),
        (b"A=1;WANDB_API_KEY=0123456789;B=2", {b"0123456789"}),
        (b'x="1" AWS_SECRET="0123456789"', {b"0123456789"}),
        (message(b"MY_PASSWORD", b"correct horse"), {b"correct horse"}),
        (message(b"HF_TOKEN", b"x" * 300), {b"x" * 300}),
        (message(b"RAY_AUTH_TOKEN_PATH", b"/run/token.file"), set()),
        (b"SSH_KEY=/home/me/.ssh/id\0MAX_TOKENS=1000000\0TOKEN=short\0", set()),
        (b"HF_TOKEN=**********\0", set()),
    ],
)
def test_secrets_are_found_by_the_name_of_their_variable(data, secrets):
    assert found_secrets(data) == secrets


def test_values_are_overwritten_wherever_they_stand_and_nothing_else(tmp_path):
    data = b"HF_TOKEN=" + SECRET.encode() + b"\0" + bytes(9 << 20) + SECRET.encode() + b"end"
    changed = masked(tmp_path, data)
    assert changed == data.replace(SECRET.encode(), b"*" * len(SECRET))


def test_a_value_across_two_blocks_is_found(tmp_path):
    data = bytes((8 << 20) - 5) + SECRET.encode() + bytes(40 << 20)
    assert SECRET.encode() not in masked(tmp_path, data, [SECRET.encode()])


def test_values_come_from_variables_with_secret_names():
    assert secret_values({"HF_TOKEN": SECRET, "PATH": "/usr/bin:/bin", "API_KEY": "abc"}) == {SECRET.encode()}


@pytest.mark.nsys
def test_a_real_report_arrives_without_the_secrets_of_its_process(tmp_path):
    node, run = tmp_path / "node", tmp_path / "run"
    (node / "profiles/nsight").mkdir(parents=True)
    run.mkdir()
    report = node / "profiles/nsight/a.nsys-rep"
    code = "import nvtx\nwith nvtx.annotate('step 3', domain='rlprof'): pass"
    argv = ["nsys", "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-o", str(report), sys.executable, "-c", code]
    subprocess.run(argv, check=True, capture_output=True, timeout=120, env={**os.environ, "HF_TOKEN": SECRET, "TMPDIR": str(tmp_path)})
    assert SECRET.encode() in report.read_bytes()
    assert Syncer(node, run, "n1").pass_().complete
    copy = run / "profiles/nsight/a.nsys-rep"
    assert SECRET.encode() not in copy.read_bytes() and copy.stat().st_size == report.stat().st_size
    assert look(copy).steps == {3}
