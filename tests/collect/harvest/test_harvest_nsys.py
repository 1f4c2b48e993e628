"""Harvest with real nsys reports: whole, empty, cut, and a raw capture that the node could not import."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from tests.collect.runfolder import RunFolder
from tests.real_nsys import command, profile
from tests.waits import wait_until

from rlprof_ops.backends.nsight.nsys_cli import find_importer
from rlprof_ops.collect.drain.nsys_contents import look
from rlprof_ops.collect.harvest.manifest_table import render
from rlprof_ops.collect.harvest.run_harvest import harvest

pytestmark = pytest.mark.nsys
REQUEST = {"captures": [{"backend": "nsight", "workers": ["policy_worker"], "steps": "3:5, 7, 9"}]}
WORKER = """
import sys, time, nvtx
for step in range(3, 5):
    with nvtx.annotate(f"step {step}", domain="rlprof"):
        time.sleep(0.01)
"""
CAPTURING = """
import os, time, nvtx
window = nvtx.start_range("capture", domain="rlprof")
with nvtx.annotate("step 7", domain="rlprof"):
    time.sleep(0.05)
nvtx.end_range(window)
time.sleep(2)
open(os.environ["TMPDIR"] + "/done", "w").close()
while os.path.exists(os.environ["TMPDIR"] + "/done"):
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    if shutil.which("nsys") is None:
        if os.environ.get("RLPROF_TESTS_REQUIRE") == "all":
            pytest.fail("nsys is not installed, and RLPROF_TESTS_REQUIRE=all asks for it")
        pytest.skip("nsys is not installed")
    folder = tmp_path_factory.mktemp("reports")
    profile(folder / "whole.nsys-rep", WORKER, TMPDIR=str(folder))
    profile(folder / "empty.nsys-rep", "pass", TMPDIR=str(folder))
    # A finished window whose session ends without its own import leaves its raw capture in TMPDIR.
    raw = folder / "raw"
    raw.mkdir()
    argv = command(
        raw / "out",
        "--session-new=rlprof-raw-1",
        "--capture-range=nvtx",
        "--nvtx-capture=capture@rlprof",
        "--capture-range-end=repeat",
        run=[sys.executable, "-c", CAPTURING],
    )
    env = {**os.environ, "TMPDIR": str(raw), "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until((raw / "done").exists)
        subprocess.run(
            ["nsys", "shutdown", "--kill=none", "--session=rlprof-raw-1"],
            env=env,
            capture_output=True,
            timeout=60,
        )
        (raw / "done").unlink()
        process.wait(60)
    return folder


def test_each_report_is_judged_by_its_contents(reports, tmp_path):
    job = RunFolder(tmp_path / "4711-logs", REQUEST)
    whole = (reports / "whole.nsys-rep").read_bytes()
    job.worker("policy_worker", 0, last_step=10)
    job.report("nsight", "policy_worker", 0, 3, 5, data=whole)
    job.report("nsight", "policy_worker", 0, 7, 8, data=(reports / "empty.nsys-rep").read_bytes())
    job.report("nsight", "policy_worker", 0, 9, 10, data=whole[: len(whole) // 2] + b"[END]")
    manifest = harvest(job.write())
    assert [(capture.state, bool(capture.reason)) for capture in manifest.captures] == [
        ("ok", False),
        ("empty", True),
        ("truncated", True),
    ]
    assert manifest.captures[1].reason == "nothing was recorded in it: no range, no kernel, no call"
    assert manifest.captures[2].reason.startswith("nsys cannot read it: ")


@pytest.mark.parametrize("left", ["none", "half", "all"])
def test_a_raw_capture_beside_its_report_is_recovered_after_a_program_without_a_job(reports, tmp_path, left):
    """nsys 2023.4 keeps both where its importer fails."""
    [raw] = (reports / "raw").glob("*.qdstrm")
    whole = (reports / "whole.nsys-rep").read_bytes()
    job = RunFolder(tmp_path / "local-1-logs", REQUEST)
    job.worker("policy_worker", 0, last_step=10)
    written = {"none": b"", "half": whole[:-5], "all": whole}[left]
    report = job.report("nsight", "policy_worker", 0, 3, 5, data=written).relative_to(job.root)
    job.file(report.with_suffix(".qdstrm"), raw.read_bytes())

    manifest = harvest(job.write())

    [first, *_] = manifest.captures
    assert (first.state, first.report) == ("ok" if left == "all" else "recovered", str(report))
    assert not first.more_reports and len(manifest.reports) == 1


def test_a_raw_capture_is_recovered_after_the_job(reports, tmp_path, monkeypatch):
    [raw] = (reports / "raw").glob("*.qdstrm")
    job = RunFolder(
        tmp_path / "4711-logs",
        {"captures": [{"backend": "nsight", "workers": ["policy_worker"], "steps": "7"}]},
    )
    job.file("nodes/n1/tmp/nsys-report-1.qdstrm", raw.read_bytes())
    pid = raw_pid(raw, tmp_path)
    job.worker(
        "policy_worker", 0, pid=pid, windows=[("opened", "nsight", 7, 8, None)], last_step=8, ended=False
    )
    job.file("nodes/n1/tmp/nsys-report-2.qdstrm", b"half of a capture" * 100)
    with monkeypatch.context() as image:  # into which nsys is mounted, but not what its importer needs
        image.setenv("RLPROF_NSYS", str(without_libraries(tmp_path / "image")))
        said = render(harvest(job.write()))
    assert "note: raw capture 'nodes/n1/tmp/nsys-report-1.qdstrm' and 1 more could not be recovered:" in said
    assert re.search(r"QdstrmImporter lacks lib\S+ here; `rlprof harvest` on the login node", said), said

    manifest = harvest(job.root)
    [capture] = manifest.captures
    assert (capture.state, capture.report) == (
        "recovered",
        f"profiles/nsight/policy_worker/rank0/policy_worker_rank0_step7-7_n1_{pid}.nsys-rep",
    )
    assert harvest(job.root) == manifest


def without_libraries(folder):
    """An nsys whose importer is the real one, alone: the loader finds nothing of what it needs."""
    for program, real in (
        ("target-linux-x64/nsys", shutil.which("nsys")),
        ("host-linux-x64/QdstrmImporter", find_importer()),
    ):
        (folder / program).parent.mkdir(parents=True)
        shutil.copy(real, folder / program)
    return folder / "target-linux-x64/nsys"


def raw_pid(raw, tmp_path):
    report = tmp_path / "pid.nsys-rep"
    subprocess.run([find_importer(), "-i", raw, "-o", report], check=True, capture_output=True, timeout=60)
    [pid] = look(report).pids
    return pid
