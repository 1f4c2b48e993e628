"""The protocol of every nsys wrap: `nsys.sh` with a stand-in that fails as nsys 2023.4 does, and nsys."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests import real_nsys
from tests.nsys_stand_in import FakeNsys
from tests.rayenv.stand_ins import own_environment
from tests.waits import poll, wait_until

from rlprof_ops.backends.nsight.nsys_wrap import SCRIPT, NsysCommand

SAY = (
    "import os, sys; get = os.environ.get; os.umask(mask := os.umask(0));"
    " print(oct(mask), get('RLPROF_NSYS_SESSION'), get('RLPROF_NOT_WRAPPED'), flush=True); sys.exit(7)"
)


@pytest.fixture
def nsys(tmp_path):
    return FakeNsys(tmp_path)


def start(nsys, tmp_path, program, subcommand="launch", umask=0o027, node_dir="", **options):
    session = "rlprof-t-" if subcommand == "launch" else ""
    command = NsysCommand(subcommand, str(nsys), ("-t", "nvtx"), session=session, **options)
    return subprocess.Popen(
        [*command.words(), *program],
        env=own_environment(TMPDIR=str(tmp_path), RLPROF_NODE_DIR=str(node_dir)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.umask(umask) and None,
    )


def run(*arguments, **options):
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err


@pytest.mark.parametrize("subcommand", ["launch", "profile"])
@pytest.mark.parametrize("fails", [0, 1, 2])
def test_the_program_runs_under_the_try_that_works(nsys, tmp_path, subcommand, fails):
    nsys.fail(fails)

    code, out, err = run(nsys, tmp_path, [sys.executable, "-c", SAY], subcommand)

    mask, session, unprofiled = out.split()
    assert (code, mask, unprofiled) == (7, "0o27", "None")
    assert session.endswith(f"-{fails + 1}") if subcommand == "launch" else session == "None"
    assert err.count(f"rlprof: nsys {subcommand} ended with 3 before the program began (try ") == fails
    assert len(nsys.calls()) == fails + 1
    assert not list(tmp_path.glob(".rlprof-pending-*"))


@pytest.mark.parametrize("subcommand", ["launch", "profile"])
def test_the_program_runs_without_nsys_in_the_end(nsys, tmp_path, subcommand):
    nsys.fail(3)

    code, out, err = run(nsys, tmp_path, [sys.executable, "-c", SAY], subcommand)

    why = f"nsys {subcommand} ended with 3 before the program began, 3 times; its own words are in the log"
    assert (code, out) == (7, f"0o27 None {why}\n")
    assert err.splitlines()[-1] == "rlprof: training goes on unprofiled"


@pytest.mark.parametrize("fails, code", [(3, 3), (2, 7)])
def test_on_error_fail_ends_with_the_exit_code_of_nsys(nsys, tmp_path, fails, code):
    nsys.fail(fails)

    assert run(nsys, tmp_path, [sys.executable, "-c", SAY], on_error="fail")[0] == code


def test_every_try_that_fails_is_noted_for_the_manifest(nsys, tmp_path):
    (tmp_path / "events").mkdir()
    nsys.hang(3)

    code, out, _ = run(nsys, tmp_path, [sys.executable, "-c", SAY], begin_within_s=1, node_dir=tmp_path)

    why = "nsys launch hung for 1 s before the program began"
    assert (code, out) == (7, f"0o27 None {why}, 3 times; its own words are in the log\n")
    [notes] = (tmp_path / "events").glob("notes_*.jsonl")
    assert [json.loads(line) for line in notes.read_text().splitlines()] == [
        {"event": "nsys_failed", "session": "rlprof-t-", "reason": f"{why} (try {number} of 3)"}
        for number in (1, 2, 3)
    ]


def test_an_nsys_that_hangs_is_ended_and_what_it_starts_late_ends_at_once(nsys, tmp_path):
    nsys.hang(1)
    ran = tmp_path / "ran"
    program = [sys.executable, "-c", f"open({str(ran)!r}, 'a').write('x'); import sys; sys.exit(7)"]

    process = start(nsys, tmp_path, program, begin_within_s=1)
    err = process.stderr.readline()

    assert err == "rlprof: nsys launch hung for 1 s before the program began (try 1 of 3)\n"
    assert process.wait(60) == 7
    time.sleep(4)
    assert ran.read_text() == "x"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_who_is_told_to_end_before_the_program_began_starts_nothing(nsys, tmp_path, number):
    ran = tmp_path / "ran"
    nsys.hang(3)
    process = start(nsys, tmp_path, ["touch", str(ran)])
    wait_until(nsys.calls)

    process.send_signal(number)

    assert process.wait(60) == 128 + number
    time.sleep(4)
    assert not ran.exists() and len(nsys.calls()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_reaches_the_program_and_its_exit_code_is_ours(nsys, tmp_path, number):
    """SIGINT too, which a shell has its children in the background ignore."""
    program = (
        "import signal, sys, time\n"
        f"signal.signal({number:d}, lambda *_: sys.exit(9))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    process = start(nsys, tmp_path, [sys.executable, "-c", program])
    assert process.stdout.readline() == "ready\n"

    process.send_signal(number)

    assert process.wait(60) == 9


def test_a_program_has_the_dispositions_and_the_input_that_it_would_have_had(nsys, tmp_path):
    program = (
        "import re, signal, sys\n"
        "print(re.sub(' at .*?>', '', str([signal.getsignal(n) for n in (2, 3, 15)])), input())"
    )
    bare = subprocess.run(
        [sys.executable, "-c", program],
        input="typed\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    process = start(nsys, tmp_path, [sys.executable, "-c", program])

    out, _ = process.communicate("typed\n", timeout=100)

    assert out == bare.stdout and out.endswith("typed\n")


def test_a_killed_program_gives_its_signal(nsys, tmp_path):
    code, _, err = run(nsys, tmp_path, ["sh", "-c", "kill -KILL $$"])

    assert (code, err) == (137, "")


def test_hostile_words_arrive_as_they_are(nsys, tmp_path):
    hostile = ["a b|c; $(touch pwned) $HOME `id` 'd' \"e\"", "", "--", "*", "-", "a\n'\n\\'b\\", "&\t\x7f é"]
    command = NsysCommand("profile", str(nsys), (*hostile, "-o", "x y"))
    program = [sys.executable, "-c", "import sys; print(sys.argv[1:])", *hostile]

    done = subprocess.run(
        [*command.words(), *program], capture_output=True, text=True, timeout=100, cwd=tmp_path, check=True
    )

    assert done.stdout == f"{hostile}\n"
    assert not (tmp_path / "pwned").exists()


def test_words_that_do_not_fit_on_the_disk_arrive_all_the_same(nsys, tmp_path):
    """As under `ulimit -f 0`: what cannot be written."""
    program = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "a 'b'", "x" * 5000]
    command = NsysCommand("profile", str(nsys), ("-t", "nvtx"))
    kept = "trap '' XFSZ; ulimit -f 1; exec \"$@\""  # a block of 1 KiB: `pending` takes no more

    done = subprocess.run(
        ["bash", "-c", kept, "-", *command.words(), *program],
        env=own_environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert (done.returncode, done.stdout) == (0, f"{program[3:]}\n"), done.stderr


@pytest.mark.nsys
@pytest.mark.parametrize("subcommand", ["launch", "profile"])
def test_who_looks_for_the_program_does_not_find_nsys(tmp_path, subcommand):
    """`ray stop` tells every process to end whose command line names a Ray worker's file: nsys, which may be
    writing then, would throw the report away.
    """
    name = f"default_worker_{os.getpid()}.py"
    (tmp_path / name).write_text("import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n")
    session = f"rlprof-look{os.getpid()}-" if subcommand == "launch" else ""
    options = ("-t", "nvtx", *(("-o", str(tmp_path / "report")) if subcommand == "profile" else ()))
    command = NsysCommand(subcommand, "nsys", options, session=session)
    process = subprocess.Popen(
        [*command.words(), sys.executable, str(tmp_path / name)],
        env=own_environment(TMPDIR=str(tmp_path)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"

    def found():
        return sorted(argv[0] for argv in map(_argv, _processes()) if any(name in word for word in argv))

    # a child of bash that has not become another program yet is one more for a moment
    expected = sorted(["bash", sys.executable])
    named = poll(found, 20, enough=lambda seen: seen == expected)
    process.communicate("\n", timeout=200)

    assert named == expected


def _processes():
    return [int(each) for each in os.listdir("/proc") if each.isdigit()]


def _argv(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read().split("\0")
    except OSError:
        return []


@pytest.mark.nsys
@pytest.mark.parametrize("subcommand", ["launch", "profile"])
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_umask_under_real_nsys_is_the_one_before(tmp_path, subcommand, umask):
    output = tmp_path / "checkpoint"
    options = ("-t", "nvtx", *(("-o", str(tmp_path / "report")) if subcommand == "profile" else ()))
    session = f"rlprof-umask{os.getpid()}-" if subcommand == "launch" else ""
    command = NsysCommand(subcommand, "nsys", options, session=session)

    subprocess.run(
        [*command.words(), "sh", "-c", 'echo > "$0"; umask', str(output)],
        env=own_environment(TMPDIR=str(tmp_path)),
        check=True,
        timeout=200,
        preexec_fn=lambda: os.umask(umask) and None,
    )

    assert oct(output.stat().st_mode & 0o777) == oct(0o666 & ~umask)


@pytest.mark.nsys
def test_what_nsys_put_into_tmp_goes_with_the_program_also_when_it_is_told_to_end(tmp_path):
    """nsys 2023.4 names its files in the program's environment and leaves them there after a SIGTERM."""
    names = "QUADD_INJECTION_CONFIG", "QUADD_CUDA_CONFIG", "QUADD_OS_RUNTIME_CONFIG", "HOOK_FILE"
    program = f"import os, time; print(*map(os.environ.get, {names}), flush=True); time.sleep(600)"
    process = start("nsys", tmp_path, [sys.executable, "-c", program])
    made = process.stdout.readline().split()
    assert len(made) == 4 and any(map(os.path.exists, made)), made

    process.terminate()
    process.communicate(timeout=200)

    assert not [name for name in made if os.path.exists(name)]
    assert not list(tmp_path.glob(".rlprof-pending-*"))


@pytest.mark.nsys
@pytest.mark.parametrize("around", ["profile", "launch"])
def test_an_nsys_of_the_users_own_has_the_right_of_way(tmp_path, around):
    """Under another nsys ours would take its ranges away. That one may fail to start: then it is asked again,
    as ours is.
    """
    ours = NsysCommand("launch", "nsys", ("-t", "nvtx"), session=f"rlprof-t{os.getpid()}-")
    program = f"import nvtx\nwith nvtx.annotate('own'): pass\n{SAY}"
    quiet = ("-s", "none", "--cpuctxsw=none") if around == "profile" else ()
    for attempt in range(3):
        name = f"own{os.getpid()}-{attempt}"
        where = ("-f", "true", "-o", tmp_path / "own") if around == "profile" else (f"--session-new={name}",)
        done = subprocess.run(
            ["nsys", around, "-t", "nvtx", *quiet, *where, *ours.words(), sys.executable, "-c", program],
            env=own_environment(TMPDIR=str(tmp_path)),
            capture_output=True,
            text=True,
            timeout=200,
        )
        if " None " in done.stdout:  # the program has run
            break

    assert "None yielded to another nsys" in done.stdout, done.stderr
    if around == "profile":
        assert "own" in real_nsys.nvtx_ranges(tmp_path / "own.nsys-rep", tmp_path)


def test_a_session_id_alone_yields_to_nobody(nsys, tmp_path, monkeypatch):
    """NeMo RL's driver hands its whole environment on to actors that run under no nsys."""
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")

    code, out, _ = run(nsys, tmp_path, [sys.executable, "-c", SAY])

    assert code == 7 and out.split()[1].endswith("-1")


def test_the_script_is_checked_and_shipped():
    """shellcheck and the wheel's package data go by these places."""
    folder = SCRIPT.parents[4]
    assert "python/rlprof_ops/backends/nsight/*.sh" in (folder / "Makefile").read_text()
    assert '"*.sh"' in (folder / "pyproject.toml").read_text()
