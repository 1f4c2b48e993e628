"""What people mistype, and jobs in every wrong state: each mistake has its exit code and a message that names
what is wrong and the way on; none a traceback, none silent, none that sends back to the same command.
"""

from __future__ import annotations

import pytest

from tests.operate.test_submit import run

ASK = ["--steps", "3:5", "--workers", "w"]
NEMO = ["--framework", "nemo_rl"]
# (what is typed, exit code, a part of the message)
MISTAKES = [
    # the command itself
    (["statsu"], 2, "Did you mean 'status'?"),
    (["--jsno"], 2, "--json"),
    (["--json"], 2, "--json goes after the command, or with --version"),
    (["help", "sbumit"], 2, "Did you mean 'submit'?"),
    (["completion", "tcsh"], 2, "'bash', 'zsh', 'fish'"),
    (["schema", "manifst"], 2, "'request', 'manifest', 'report'"),
    # a request
    (["plan", "none.yaml"], 2, "none.yaml: cannot read the request: No such file or directory"),
    (["plan", "zero.yaml"], 2, "steps are counted from 1 and stop is not included; write '1:11'"),
    (["plan", "broken.yaml"], 2, "broken.yaml"),
    (["plan", "key.yaml"], 2, "Did you mean 'captures'?"),
    (["plan", "backend.yaml"], 2, "Did you mean 'nsight'?"),
    (["plan", "folder"], 2, "folder"),
    (["plan", "--steps", "3-5", "--workers", "w"], 2, "write '3:6' for steps 3 to 5"),
    (["plan", "--steps", "5:5", "--workers", "w"], 2, "'5:5' is empty"),
    (["plan", "--steps", "9:3", "--workers", "w"], 2, "did you mean '3:9'?"),
    (["plan", "--steps", "a", "--workers", "w"], 2, "'a' is not a whole number; write '3:5'"),
    (["plan", "--workers", "w"], 2, "give a request file, or also --steps"),
    (["plan", *ASK, "--ranks", "0-3"], 2, "write [0, 1, 2, 3]"),
    (["plan", *ASK, "--ranks", "-1"], 2, "ranks"),
    (["plan", *ASK, "--backend", "nsys"], 2, "Did you mean 'nsight'?"),
    (["plan", *ASK, "--each", "stpe"], 2, "Did you mean 'step'?"),
    (["plan", *ASK, "--world", "w"], 2, "'w' is not NAME=RANKS"),
    (["plan", *ASK, "--world", "w=x"], 2, "'w=x' is not NAME=RANKS"),
    (["plan", "--step", "3:5", "--workers", "w"], 2, "'--steps'"),
    (["render", *ASK], 2, "--framework"),
    (["render", "--framework", "verll", *ASK], 2, "verl"),
    (["import", *NEMO, "NRL_NSYS_WORKER_PATTERNS=*"], 2, "NRL_NSYS_PROFILE_STEP_RANGE"),
    (["import", "--framework", "verl", "none.yaml"], 2, "none.yaml"),
    # submit
    (["submit", "-N", "2", "true"], 2, "the command goes after `--`"),
    (["submit", "--", "python train.py"], 2, "is one word, so it would be the name of a program"),
    (["submit", "--step", "3:5", "--workers", "w", "--", "true"], 2, "Did you mean --steps?"),
    (["submit", "--requets", "p.yaml", "--", "true"], 2, "Did you mean --request?"),
    (["submit", "--request", "zero.yaml", "--", "true"], 2, "write '1:11'"),
    (["submit", "--set", "RLPROF_READY_SECOND=1", "--", "true"], 2, "Did you mean 'RLPROF_READY_SECONDS'?"),
    (
        ["submit", "--set", "RAY_LOG_SYNC_FREQUENCY=often", "--", "true"],
        2,
        "a number from 0 to 86400",
    ),
    (["submit", "--set", "SEED", "--", "true"], 2, "not set in this shell; write --set SEED=value"),
    (["submit", "--set", "SLURM_NNODES=2", "--", "true"], 2, "give sbatch's own option instead"),
    (["submit", "--set", "=1", "--", "true"], 2, "is no name of a variable"),
    (["submit", "--export=ALL", "--", "true"], 2, "give --set NAME=value"),
    (["submit", "--array=0-3", "--", "true"], 2, "submit once for each"),
    (["submit", "--wrap=true", "--", "true"], 2, "give the command after --"),
    (["submit", "--framework", "verl", *ASK], 2, "give it after `--`"),
    (["submit", "--set", "RLPROF_CONTAINER_RUNTIME=docker", "--", "true"], 2, "none or pyxis or apptainer"),
    (["submit", "--set", "RLPROF_TRAINER=nemo", "--", "true"], 2, "Did you mean 'nemo_rl'?"),
    # a job
    (["status"], 2, "no job of yours is known here: give a job id"),
    (["status", "99"], 2, "Slurm does not know job 99"),
    (["status", "4711abc"], 2, "is neither a folder nor a job id"),
    (["status", "folder"], 2, "not the run folder of a job"),
    (["status", "98"], 2, "is no job of rlprof's: its script is /home/ann/train.sh"),
    (["stop", "99"], 2, "Slurm does not know job 99"),
    (["stop", "4711"], 2, "is not known to Slurm any more: it has ended"),
    (["logs", "97"], 1, "there is no log of 'driver' (yet)"),
    (["logs", "4711", "--node", "n7"], 2, "Did you mean 'n"),
    (["logs", "4711", "--node", "0", "--job-output"], 2, "give one of them"),
    (["logs", "4711", "-n", "-3"], 2, "x>=0"),
    (["attach", "97"], 1, "is not running (PENDING)"),
    (["attach", "4711", "n1", "nvidia-smi"], 2, "a command goes after `--`"),
    (["dashboard", "97"], 1, "has not started yet"),
    (["retry", "97"], 1, "has no run folder"),
    (["retry", "--wait", "4711"], 2, "the job comes first"),
    (["capture", "4711", "--workers", "w"], 2, "give one of --steps next:N and --seconds S"),
    (["capture", "4711", "--workers", "w", "--steps", "2"], 2, "expected next:N"),
    (["capture", "4711", "--workers", "w", "--seconds", "1", "--ranks", "0-3"], 2, "write 0,1,2,3"),
    (["capture", "4711", "--workers", "", "--seconds", "1"], 2, "--workers names no worker"),
    (["capture", "4711", "--workers", "w", "--seconds", "1", "--option", "x"], 2, "expected NAME=VALUE"),
    (["capture", "4711", "--workers", "w", "--seconds", "1"], 1, "has ended"),
    (["stacks", "97"], 1, "has no run folder yet"),
    (["harvest", "folder"], 2, "run.json"),
    (["report", "folder"], 2, "folder"),
    (["report", "99"], 2, "Slurm does not know job 99"),
    (["diff", "folder", "folder"], 2, "folder"),
    (["timeline", "folder"], 2, "folder"),
    (["clean", "--older-than", "30"], 2, "expected a number with h, d or w, e.g. 30d"),
    # the rest
    (["doctor", "--nodes", "0"], 2, "--nodes"),
    (["doctor", "--nodes", "2", "--job", "1"], 2, "a running job has its own nodes"),
    (["patch-ray", "--file", "none.py"], 2, "none.py"),
    (["wrap", "--worker", "w"], 2, "CMD"),
    (["init"], 2, "FOLDER"),
    (["demo", "--steps", "x"], 2, "--steps"),
]


@pytest.fixture
def desk(fake, run_folder, tmp_path):
    """A shell with a finished job 4711 that Slurm has forgotten, 97 in the queue, 98 of another program."""
    run_folder.record(cause="driver_exit", exit_code=0)
    run_folder.manifest(("policy_worker", 0, 3, 5, "missing"))
    fake.show("97", "PENDING")
    fake.show("98", "RUNNING", Command="/home/ann/train.sh")
    work = run_folder.path.parent
    (work / "folder").mkdir()
    (work / "zero.yaml").write_text('captures: [{workers: [w], steps: "0:10"}]\n')
    (work / "broken.yaml").write_text("captures: [\n")
    (work / "key.yaml").write_text('capture: [{workers: [w], steps: "3:5"}]\n')
    (work / "backend.yaml").write_text('captures: [{backend: nsigth, workers: [w], steps: "3:5"}]\n')
    return fake


def shown(value: object) -> str:
    return " ".join(value)[:60] if isinstance(value, list) else ""


@pytest.mark.parametrize(("words", "code", "part"), MISTAKES, ids=shown)
def test_a_mistake_has_a_code_and_a_way_on(desk, capfd, words, code, part):
    found = run(*words)
    said = capfd.readouterr()
    assert found == code, said
    assert part in said.err, said
    assert "Traceback" not in said.err
    assert f"rlprof {' '.join(words)}\n" not in said.err, "a circle"
    assert desk.called("sbatch") == []


def test_there_are_sixty_of_them_and_none_may_be_silent():
    assert len({tuple(words) for words, _, _ in MISTAKES}) >= 60
    assert [words for words, code, part in MISTAKES if not part or code == 0] == []
