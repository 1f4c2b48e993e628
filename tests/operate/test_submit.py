"""`rlprof submit`: the exact sbatch line and environment, and every mistake named before Slurm sees the
job.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rlprof_ops.cli import main
from rlprof_ops.job import job_history
from rlprof_ops.job.knobs import home
from rlprof_ops.job.run_folder import find
from rlprof_ops.job.run_folder import run_folder as locate
from rlprof_ops.request import RequestError, load_request, request_from_dict
from rlprof_ops.slurm import sbatch_options
from rlprof_ops.submit import sbatch_line

ASKED = ["--steps", "3:5,7", "--workers", "policy_worker"]


def run(*argv: str) -> int:
    """The exit code of one rlprof command."""
    try:
        main(list(argv))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def sent(fake) -> tuple[list[str], dict[str, str]]:
    (call,) = [call for call in fake.calls if call["argv"][0] == "sbatch"]
    return call["argv"], call["env"]


def test_the_line_is_an_argument_list_in_the_order_it_was_given(fake):
    code = run(
        "submit",
        "-N",
        "3",
        "--gpus-per-node",
        "8",
        "-p",
        "gpu x",
        "--comment=$(id) 'a'",
        "--exclusive",
        *ASKED,
        "--time=4:00:00",
        "--",
        "python",
        "train.py",
        "--name",
        "it's $HOME",
    )
    argv, env = sent(fake)

    assert code == 0
    assert argv == [
        "sbatch",
        "--parsable",
        "--export=ALL",
        "--job-name=rlprof",
        "-N",
        "3",
        "--gpus-per-node",
        "8",
        "-p",
        "gpu x",
        "--comment=$(id) 'a'",
        "--exclusive",
        "--time=4:00:00",
        f"{home()}/ray.sub",
    ]
    assert shlex.split(env["COMMAND"]) == ["python", "train.py", "--name", "it's $HOME"]
    asked = load_request(env=env)
    assert [str(spec.steps) for spec in asked.captures] == ["3:5,7"]


def test_nothing_of_the_shell_goes_along_by_accident(fake, monkeypatch, capsys):
    for name in (
        "RLPROF_STEPS",
        "COMMAND",
        "WANDB_API_KEY",
        "LD_LIBRARY_PATH",
        "SLURM_JOB_ID",
        "SBATCH_PARTITION",
        "SOMETHING",
        "NRL_NSYS_WORKER_PATTERNS",
    ):
        monkeypatch.setenv(name, "left-over")
    monkeypatch.setenv("HF_TOKEN", "hf_secret_value")
    monkeypatch.setenv("SLURM_CONF", "/etc/other/slurm.conf")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")

    assert run("submit", "-N2", "--set", "HF_TOKEN", "--set", "NCCL_DEBUG=INFO", "--", "true") == 0
    _, env = sent(fake)

    assert "left-over" not in env.values()
    assert env["HF_TOKEN"] == "hf_secret_value"
    assert env["NCCL_DEBUG"] == "INFO"
    assert (env["SLURM_CONF"], env["LC_ALL"]) == ("/etc/other/slurm.conf", "C.UTF-8")
    allowed = {
        *sbatch_line.FROM_SHELL,
        "LC_ALL",
        "HF_TOKEN",
        "NCCL_DEBUG",
        "COMMAND",
        "RLPROF_HOME",
        "RLPROF_VENV",
        "LC_CTYPE",
    }
    assert set(env) <= allowed
    note = capsys.readouterr().err
    for name in (
        "RLPROF_STEPS",
        "COMMAND",
        "WANDB_API_KEY",
        "LD_LIBRARY_PATH",
        "SBATCH_PARTITION",
        "NRL_NSYS_WORKER_PATTERNS",
    ):
        if name != "COMMAND":  # the command of this line stands in its place
            assert name in note


def test_a_dry_run_shows_all_and_sends_nothing(fake, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "hf_secret_value")
    code = run(
        "submit",
        "--dry-run",
        "-N2",
        "--set",
        "HF_TOKEN",
        "--",
        "env",
        "PASSWORD=hunter22",
        "python",
        "train.py",
        "hf_secret_value",
    )
    out = capsys.readouterr().out

    assert code == 0
    assert fake.called("sbatch") == []
    assert "hf_secret_value" not in out and "hunter22" not in out
    assert "'HF_TOKEN=***'" in out
    assert out.rstrip().endswith(f"sbatch --parsable --export=ALL --job-name=rlprof -N2 {home()}/ray.sub")


def test_a_dry_run_line_does_the_same_when_it_is_typed(fake, capsys, tmp_path):
    import subprocess

    run("submit", "--dry-run", "-N2", "--comment=a b;c", *ASKED, "--", "python", "it's.py")
    line = capsys.readouterr().out
    line = line[line.index("env -i") :]
    subprocess.run(["bash", "-c", line], check=True, timeout=60)
    typed = sent(fake)
    (fake.folder / "calls.jsonl").unlink()
    run("submit", "-N2", "--comment=a b;c", *ASKED, "--", "python", "it's.py")
    direct = sent(fake)

    assert typed[0] == direct[0]
    shells_own = ("PWD", "SHLVL", "_", "OLDPWD", "LC_CTYPE")
    assert {k: v for k, v in typed[1].items() if k not in shells_own} == {
        k: v for k, v in direct[1].items() if k not in shells_own
    }


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--requst", "x.yaml"], "no such option: --requst. Did you mean --request?"),
        (["--dryrun"], "no such option: --dryrun. Did you mean --dry-run?"),
        (["--contianer=x"], "no such option: --contianer. Did you mean --container?"),
        (["python", "train.py"], "'python': the command goes after `--`"),
        (["--", "python train.py"], "is one word, so it would be the name of a program"),
        (["--array=1-4", "--", "true"], "--array: the tasks of an array would share one run folder"),
        (["--export=ALL", "--", "true"], "--export: the job's environment is made by rlprof"),
        (["-W", "--", "true"], "-W: use --wait"),
        (["--set", "RLPROF_VENVV=/x"], "Did you mean 'RLPROF_VENV'?"),
        (["--set", "NOT_THERE"], "--set NOT_THERE: not set in this shell"),
        (["--set", "a-b=1"], "'a-b' is no name of a variable"),
        (["--set", "SBATCH_QOS=high"], "--set SBATCH_QOS: give sbatch's own option"),
        (
            ["--set", "PORT=abc", "--set", "RLPROF_READY_SECONDS=0"],
            "RLPROF_READY_SECONDS='0': expected a number",
        ),
        (["--steps", "0:10", "--workers", "x"], "steps are counted from 1"),
        (["--request", "no-such.yaml"], "no-such.yaml"),
        (
            ["--steps", "3:5", "--workers", "x", "--framework", "verl"],
            "--framework verl adds the trainer's settings to its command",
        ),
    ],
)
def test_a_mistake_is_named_and_ends_with_2(fake, capsys, argv, message):
    assert run("submit", *argv) == 2
    assert message in capsys.readouterr().err
    assert fake.called("sbatch") == []


def test_what_sbatch_says_is_passed_on_with_the_nearest_option(fake, capsys):
    (fake.folder / "refused").write_text("sbatch: unrecognized option '--partion=gpu'")
    assert run("submit", "--partion=gpu", "--", "true") == 2
    assert "Did you mean --partition?" in capsys.readouterr().err
    (fake.folder / "refused").write_text("sbatch: error: invalid partition specified: moon")
    assert run("submit", "--partition=moon", "--", "true") == 1
    assert (
        "sbatch refused the job: sbatch: error: invalid partition specified: moon" in capsys.readouterr().err
    )


def test_without_slurm_it_says_so(fake, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    assert run("submit", "--", "true") == 1
    assert "sbatch is not on PATH" in capsys.readouterr().err


def test_a_site_gives_sbatch_its_defaults_and_a_flag_wins(fake, tmp_path, monkeypatch, capsys):
    site = tmp_path / "east.env"
    site.write_text(
        'SBATCH_PARTITION=gpu long\nSBATCH_ACCOUNT=rl\nRLPROF_SBATCH_ARGS=--comment=\'{"reaper": {"exempt":'
        ' "60"}}\' --exclude=n9\n'
        f"BASE_LOG_DIR={tmp_path}/runs\nNCCL_IB_HCA=mlx5\nRLPROF_STEPS=1:2\nRLPROF_WORKERS=x\nRLPROF_REDY_SECONDS=3\n"
    )
    monkeypatch.setenv("RLPROF_SITE_ENV", str(site))
    monkeypatch.setenv("SBATCH_ACCOUNT", "of the shell")
    assert run("submit", "--exclude=n1", *ASKED, "--", "true") == 0
    argv, env = sent(fake)

    assert argv[4:-1] == ['--comment={"reaper": {"exempt": "60"}}', "--exclude=n9", "--exclude=n1"]
    assert (env["SBATCH_PARTITION"], env["SBATCH_ACCOUNT"]) == ("gpu long", "rl")
    assert env["RLPROF_SITE_ENV"] == str(site)
    # What the site asks by itself is closed: the job gets the request that was shown.
    assert (env["RLPROF_STEPS"], env["RLPROF_WORKERS"]) == ("", "")
    assert load_request(env=env).captures[0].workers == ("policy_worker",)
    assert (tmp_path / "runs" / "4711-logs" / ".secrets" / "submit.json").is_file()
    assert "RLPROF_REDY_SECONDS is no knob" in capsys.readouterr().err


@pytest.mark.parametrize(("line", "message"), [
    ("SBATCH_PARTITON=gpu", "Did you mean SBATCH_PARTITION?"),
    ("SBATCH_EXPORT=ALL", "SBATCH_EXPORT: not a variable that sbatch reads for rlprof"),
    ("RLPROF_SBATCH_ARGS=--comment='", "RLPROF_SBATCH_ARGS: No closing quotation"),
    ("PORT=99999", "PORT='99999': expected a port"),
])  # fmt: skip
def test_a_mistake_in_the_sites_file_is_named(fake, tmp_path, monkeypatch, capsys, line, message):
    site = tmp_path / "site.env"
    site.write_text(line + "\n")
    monkeypatch.setenv("RLPROF_SITE_ENV", str(site))
    assert run("submit", "--", "true") == 2
    assert message in capsys.readouterr().err


def test_a_sites_file_that_is_not_there(fake, monkeypatch, capsys):
    monkeypatch.setenv("RLPROF_SITE_ENV", "west.env")
    assert run("submit", "--", "true") == 2
    assert "RLPROF_SITE_ENV=west.env: no such file" in capsys.readouterr().err


def test_verl_gets_its_overrides_after_the_command(fake):
    assert (
        run(
            "submit",
            *ASKED,
            "--framework",
            "verl",
            "--",
            "python3",
            "-m",
            "verl.trainer.main_ppo",
            "trainer.nnodes=2",
        )
        == 0
    )
    _, env = sent(fake)
    words = shlex.split(env["COMMAND"])

    assert words[:4] == ["python3", "-m", "verl.trainer.main_ppo", "trainer.nnodes=2"]
    assert "global_profiler.steps=[3,4,7]" in words
    assert all(word.strip() == word for word in words)
    assert env["RLPROF_TRAINER"] == "verl"


def test_nemo_rl_gets_its_variables_and_what_it_cannot_do_is_said(fake, capsys):
    assert run("submit", *ASKED, "--ranks", "0", "--framework", "nemo_rl", "--", "python", "run_grpo.py") == 0
    _, env = sent(fake)
    exports, _, command = env["COMMAND"].rpartition("\n")

    assert command == "python run_grpo.py"
    assert "export NRL_NSYS_PROFILE_STEP_RANGE=3:5" in exports
    assert all(line.startswith("export NRL_") for line in exports.splitlines())
    err = capsys.readouterr().err
    assert "NeMo RL cannot do this: capture 1: ranks" in err
    assert "NeMo RL takes one range" in err


def test_folders_for_reports_go_along_for_their_mounts(fake):
    """The request is carried as one variable, which ray.sub does not read."""
    words = ("NRL_TORCH_PROFILE_STEP_RANGE=3:5", "NRL_TORCH_PROFILE_WORKER_PATTERNS=*")
    given = [part for word in (*words, "NRL_TORCH_PROFILE_DIR=traces") for part in ("--set", word)]
    assert run("submit", *given, "--", "true") == 0
    env = sent(fake)[1]
    assert env["NRL_TORCH_PROFILE_DIR"] == str(Path.cwd() / "traces")
    assert load_request(env=env).output_dir == str(Path.cwd() / "traces")
    (fake.folder / "calls.jsonl").unlink()
    assert run("submit", *ASKED, "--output-dir", "/reports", "--", "true") == 0
    env = sent(fake)[1]
    assert (env["RLPROF_OUTPUT_DIR"], load_request(env=env).output_dir) == ("/reports", "/reports")


@pytest.mark.parametrize(("framework", "workers", "trainer"), [
    ("nemo_rl", "dtensor_policy_worker", "nemo_rl"), ("nemo_rl", "megatron_policy_worker", "nemo_rl_megatron"),
    ("nemo_rl", "*policy*", "nemo_rl"), ("verl-legacy", "actor", "verl"), ("rlinf", "ActorGroup", "rlinf"),
])  # fmt: skip
def test_a_framework_chooses_its_trainers_settings(fake, framework, workers, trainer):
    assert (
        run(
            "submit", "--steps", "3:5", "--workers", workers, "--framework", framework, "--", "python", "x.py"
        )
        == 0
    )
    assert sent(fake)[1]["RLPROF_TRAINER"] == trainer
    (fake.folder / "calls.jsonl").unlink()
    given = ("--set", "RLPROF_TRAINER=verl", "--steps", "3:5", "--workers", workers)
    assert run("submit", *given, "--framework", framework, "--", "python", "x.py") == 0
    assert sent(fake)[1]["RLPROF_TRAINER"] == "verl"


@pytest.mark.parametrize(("framework", "backend", "expected"), [
    ("rlinf", "nsight", "++cluster.profiling.output_dir=/runs/it's 1/profiles"),
    ("verl", "torch", "global_profiler.save_path=/runs/it's 1/profiles"),
    ("verl", "memory", "global_profiler.save_path=/runs/it's 1/profiles"),
    ("nemo_rl", "torch", "NRL_TORCH_PROFILE_DIR=/runs/it's 1/profiles"),
])  # fmt: skip
def test_what_a_trainer_writes_itself_goes_into_the_run_folder(fake, framework, backend, expected):
    """Held by bash itself, and by Hydra's grammar where there is one."""
    asked = ("--steps", "3", "--workers", "*", "--backend", backend, "--framework", framework)
    asked += ("--set", "RLPROF_ADAPTERS=0")  # else ours takes torch and memory
    assert run("submit", *asked, "--", "printf", "%s\\n") == 0
    command = sent(fake)[1]["COMMAND"]
    shell = {
        "RLPROF_RUN_DIR": "/runs/it's 1" if framework == "nemo_rl" else "/runs/its 1",
        "PATH": os.environ["PATH"],
    }
    words = subprocess.run(
        ["bash", "-c", f"{command}\nenv"], env=shell, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    if framework != "nemo_rl":
        expected = expected.replace("it's 1", "its 1").replace("=", "='", 1) + "'"
    assert expected in words
    (fake.folder / "calls.jsonl").unlink()
    assert run("submit", *asked, "--output-dir", "/mine", "--", "true") == 0
    assert "RLPROF_RUN_DIR" not in sent(fake)[1]["COMMAND"]


@pytest.mark.parametrize(("framework", "word"), [("verl", "global_profiler"), ("nemo_rl", "NRL_TORCH")])
def test_one_side_takes_each_capture(fake, framework, word, tmp_path, capsys):
    """Two torch profilers in one process would end it."""
    profile = tmp_path / "profile.yaml"
    profile.write_text("captures:\n  - {backend: torch, workers: ['*'], steps: '2'}\n")
    asked = ("submit", "--request", str(profile), "--framework", framework)

    assert run(*asked, "--", "true") == 0
    ours = sent(fake)[1]
    assert "torch" in ours["RLPROF_REQUEST_JSON"] and word not in ours["COMMAND"]
    assert "torch captures are taken by rlprof" in capsys.readouterr().err

    (fake.folder / "calls.jsonl").unlink()
    assert run(*asked, "--set", "RLPROF_ADAPTERS=0", "--", "true") == 0
    theirs = sent(fake)[1]
    assert "torch" not in theirs.get("RLPROF_REQUEST_JSON", "") and word in theirs["COMMAND"]
    assert "since RLPROF_ADAPTERS=0" in capsys.readouterr().err


def test_two_clusters_side_by_side(fake, tmp_path, monkeypatch):
    for name in ("east", "west"):
        (tmp_path / f"{name}.env").write_text(f"SBATCH_PARTITION={name}\nBASE_LOG_DIR={tmp_path}/{name}\n")
        monkeypatch.setenv("RLPROF_SITE_ENV", str(tmp_path / f"{name}.env"))
        assert run("submit", "--", "true") == 0
        assert [call["env"]["SBATCH_PARTITION"] for call in fake.calls if call["argv"][0] == "sbatch"][
            -1
        ] == name
    # Both have a job 4711: the site that is chosen now says which is meant.
    for name in ("east", "west"):
        monkeypatch.setenv("RLPROF_SITE_ENV", str(tmp_path / f"{name}.env"))
        assert find("4711").run == tmp_path / name / "4711-logs"


def test_the_job_is_remembered_and_its_secrets_are_not(fake, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "key-of-the-shell")
    assert (
        run(
            "submit",
            "-N2",
            "--set",
            "WANDB_API_KEY",
            "--set",
            "MY_TOKEN=typed-token",
            "--set",
            "SEED=3",
            "--",
            "true",
        )
        == 0
    )
    out = capsys.readouterr().out
    folder = Path.cwd() / "4711-logs"
    record = folder / ".secrets" / "submit.json"

    assert f"run folder: {folder}" in out and "rlprof status 4711" in out
    assert record.stat().st_mode & 0o777 == 0o600
    assert (folder / ".secrets").stat().st_mode & 0o777 == 0o700
    assert "key-of-the-shell" not in record.read_text() and "typed-token" not in record.read_text()
    assert json.loads(record.read_text())["from_shell"] == ["MY_TOKEN", "WANDB_API_KEY"]
    monkeypatch.chdir(tmp_path)
    assert locate("4711") == folder


def test_json_is_one_object(fake, capsys):
    assert run("submit", "--json", *ASKED, "--", "true") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["job"], said["run_dir"]) == ("4711", str(Path.cwd() / "4711-logs"))


def test_the_virtual_environment_is_a_said_guess(fake, capsys):
    run("submit", "--dry-run", "--", "true")
    said = capsys.readouterr()
    if sys.prefix != sys.base_prefix:
        assert f"RLPROF_VENV={sys.prefix}" in said.out and sys.prefix in said.err
    run("submit", "--dry-run", "--container", "image", "--", "true")
    assert "RLPROF_VENV" not in capsys.readouterr().out


def test_words_before_the_dashes():
    options = {"--request": True, "--wait": False, "-h": False}
    words = sbatch_options.split(
        [
            "-N",
            "3",
            "--wait",
            "--request=a",
            "--request",
            "b",
            "-Jname",
            "--nice",
            "--foo-bar",
            "x",
            "--",
            "--wait",
        ],
        options,
    )
    assert words.ours == ("--wait", "--request=a", "--request", "b")
    assert words.sbatch == ("-N", "3", "-Jname", "--nice", "--foo-bar", "x")
    assert words.command == ("--wait",)


def test_the_carried_request_is_the_lowest_layer(tmp_path):
    carried = request_from_dict({"captures": [{"workers": "a", "steps": "3"}]}).to_json()
    file = tmp_path / "profile.yaml"
    file.write_text("captures: [{workers: b, steps: '4'}]")
    env = {"RLPROF_REQUEST_JSON": carried}
    for more, worker in (
        ({}, "a"),
        ({"RLPROF_REQUEST": str(file)}, "b"),
        ({"RLPROF_STEPS": "5", "RLPROF_WORKERS": "c"}, "c"),
    ):
        assert load_request(env=env | more).captures[0].workers == (worker,)
    with pytest.raises(RequestError, match="RLPROF_REQUEST_JSON"):
        load_request(env={"RLPROF_REQUEST_JSON": "{"})


def test_what_is_remembered_stays_small_and_survives_rubbish(tmp_path, monkeypatch):
    monkeypatch.setattr(job_history, "_KEPT", 3)
    env = {"XDG_STATE_HOME": str(tmp_path)}
    for number in range(20):
        job_history.remember(job_history.Remembered(str(number), f"/runs/{number}-logs", "x", number), env)
        assert job_history.recall(env)[-1].job == str(number)
    assert 3 <= len(job_history.recall(env)) <= 6
    file = job_history.path(env)
    file.write_bytes(b"\xff{not json\n[]\n" + file.read_bytes())
    assert job_history.folders("19", env) == [Path("/runs/19-logs")]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_somebody_else_made_gets_no_record(fake, tmp_path, capsys):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (Path.cwd() / "4711-logs").mkdir()
    (Path.cwd() / "4711-logs" / ".secrets").symlink_to(elsewhere)
    assert run("submit", "--", "true") == 0
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(("limit", "seconds"), [
    ("2", 120), ("2:30", 150), ("1:00:00", 3600), ("1-0", 86400), ("1-2:3", 93780), ("0-0:0:7", 7), ("INFINITE", None), ("1:2:3:4", None), ("", None),
])  # fmt: skip
def test_a_time_limit_in_seconds(limit, seconds):
    assert sbatch_options.seconds_of(limit) == seconds


@pytest.mark.parametrize(("words", "said"), [
    (["-t2"], "--time=2 leaves 0 s"), (["--time", "3:30"], "--time=3:30 leaves 90 s"), (["--time=2", "--signal=B:USR2@30"], "leaves 90 s"),
    (["--time=4:00:00"], None), (["--time=2", "-t", "60"], None), ([], None),
])  # fmt: skip
def test_a_limit_that_is_over_at_once_is_told(fake, capsys, words, said):
    assert run("submit", "--dry-run", *words, "--", "true") == 0
    err = capsys.readouterr().err
    assert (said in err) if said else ("leaves" not in err)
