"""Secrets are taken out of nsys reports, and the reports stay readable."""

import os
import subprocess
import sys

import pytest

from rlprof_ops.collect.drain.nsys_contents import look
from rlprof_ops.collect.sync.mask_secrets import mask_file, secret_values, secrets_of_processes
from rlprof_ops.collect.sync.sync_pass import Syncer

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


def test_values_are_overwritten_wherever_they_stand_and_nothing_else(tmp_path):
    data = b"HF_TOKEN=" + SECRET.encode() + b"\0" + bytes(9 << 20) + SECRET.encode() + b"end"
    changed = masked(tmp_path, data, [SECRET.encode(), SECRET[:8].encode()])
    assert changed == data.replace(SECRET.encode(), b"*" * len(SECRET))


def test_a_value_across_two_blocks_is_found(tmp_path):
    data = bytes((8 << 20) - 5) + SECRET.encode() + bytes(40 << 20)
    assert SECRET.encode() not in masked(tmp_path, data, [SECRET.encode()])


def test_values_come_from_variables_with_secret_names():
    assert secret_values({"HF_TOKEN": SECRET, "PATH": "/usr/bin:/bin", "API_KEY": "abc"}) == {SECRET.encode()}


def test_secrets_of_other_processes_are_known():
    secrets = {
        "SOME_TOKEN": "0123456789abcdef",
        "SOME_TOKEN_PATH": "/run/secret-path",
        "TOKENIZERS_PARALLELISM": "false-false",
    }
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **secrets}) as process:
        try:
            found = secrets_of_processes()
        finally:
            process.kill()
    assert b"0123456789abcdef" in found and b"/run/secret-path" not in found and b"false-false" not in found


@pytest.mark.nsys
@pytest.mark.parametrize("turn", range(2))
def test_a_real_report_arrives_without_the_secrets_of_its_process(tmp_path, monkeypatch, turn):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    node, run = tmp_path / "node", tmp_path / "run"
    (node / "profiles/nsight").mkdir(parents=True)
    run.mkdir()
    report = node / "profiles/nsight/a.nsys-rep"
    code = "import nvtx\nwith nvtx.annotate('step 3', domain='rlprof'): pass"
    argv = [
        "nsys",
        "profile",
        "-t",
        "nvtx",
        "-s",
        "none",
        "--cpuctxsw=none",
        "-o",
        str(report),
        sys.executable,
        "-c",
        code,
    ]
    subprocess.run(
        argv, check=True, capture_output=True, timeout=120, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert SECRET.encode() in report.read_bytes()
    assert Syncer(node, run, "n1").pass_().complete
    copy = run / "profiles/nsight/a.nsys-rep"
    assert SECRET.encode() not in copy.read_bytes() and copy.stat().st_size == report.stat().st_size
    assert look(copy).steps == {3}
