"""`pip install .` and each extra alone: every command works, or says in one line which extra it wants."""

from __future__ import annotations

import json
import os
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from rlprof_ops.commands import GROUPS
from rlprof_ops.extras import EXTRAS
from tests.analyze.fake_run import make_run
from tests.operate.conftest import RunFolder, fake, run_folder  # noqa: F401
from tests.operate.mistakes import MISTAKES
from tests.packaging.conftest import HOME
from tests.recorder.recorded import write_summary
from tests.recorder.simulated import healthy

pytestmark = pytest.mark.whole

RUN = "4711-logs"
# What needs an extra -> which; all else works with click and PyYAML.
WANTS = (
    (("report", RUN), "analyze"),
    (("report", "--serve", RUN), "analyze"),
    (("timeline", RUN), "analyze"),
    (("diff", RUN, RUN), "analyze"),
    (("top", "--once", RUN), "analyze"),
    (("export", RUN, "--tensorboard", "board"), "export"),
    (("export", RUN, "--otlp", "http://127.0.0.1:1"), "export"),
    (("export", RUN, "--parquet", "tables"), "analyze"),
    (("demo",), "ray,torch"),
)
WORKS = (
    ("top", "--json", RUN),
    ("status", RUN),
    ("ps", "."),
    ("logs", RUN),
    ("plan", "--steps", "3:5", "--workers", "w"),
    ("convert", "--to", "verl", "--steps", "3:5", "--workers", "actor"),
    ("export", RUN, "--openmetrics", "job.prom"),
    ("schema",),
    ("completion", "bash"),
    *((name, "--help") for names in GROUPS.values() for name in names),
)


@pytest.fixture
def here(run_folder: RunFolder) -> Path:  # noqa: F811
    make_run(run_folder.path, ranks=2, steps=(3, 4))
    run_folder.record(cause="driver_exit", exit_code=0)
    write_summary(run_folder.path, "4711", healthy(1, 5, ranks=2))
    (run_folder.path / "logs" / "driver.log").write_text("step 1\n")
    return run_folder.path.parent


def type_all(python: Path, lines: list[tuple[str, ...]], *more: Path) -> list[tuple[object, str]]:
    """What each command line ends with and says, in one process of that Python."""
    done = subprocess.run(
        [python, "-m", "tests.command_line"], input=json.dumps(lines), capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": ":".join(map(str, (HOME, *more)))}, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [(code, said) for code, said in json.loads(done.stdout)]


def brought(extra: str, folder: Path) -> Path:
    """A folder with links to what an extra brings and to what that needs, as these tests have it."""
    folder.mkdir()
    todo = [text for text in metadata.requires("rlprof-ops") or () if f'extra == "{extra}"' in text]
    done: set[str] = set()
    while todo:
        name = re.split(r"[^\w.-]", todo.pop())[0]
        if name in done:
            continue
        done.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another system
        todo += [text for text in distribution.requires or () if "extra ==" not in text]
        tops = {Path(file).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder


def test_the_base_install_says_which_extra_it_wants(installed: Path, here: Path) -> None:
    ends = type_all(installed / "python", [*(words for words, _ in WANTS), *WORKS])
    for (words, extra), (code, said) in zip(WANTS, ends, strict=False):
        assert code in (1, 2) and "Traceback" not in said, (words, said)
        assert said.count("\n") == 1 and f"pip install 'rlprof-ops[{extra}]'" in said, (words, said)
    for words, (code, said) in zip(WORKS, ends[len(WANTS) :], strict=True):
        assert code == 0 and "Traceback" not in said, (words, said)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_is_enough_for_what_is_its_own(
    extra: str, installed: Path, here: Path, tmp_path: Path
):
    pytest.importorskip(EXTRAS[extra][0])
    lines = [(words, wanted) for words, wanted in WANTS if "--serve" not in words and "--otlp" not in words]
    lines = lines[:-1] if extra in ("ray", "torch") else lines  # the demo itself: tests/demo
    ends = type_all(installed / "python", [words for words, _ in lines], brought(extra, tmp_path / "extra"))
    for (words, wanted), (code, said) in zip(lines, ends, strict=True):
        if wanted == extra:
            assert code == 0, (words, said)
        else:
            assert code in (1, 2) and f"pip install 'rlprof-ops[{wanted}]'" in said, (words, said)


def test_mistakes_on_the_base_install(installed: Path, here: Path) -> None:
    """As tests/operate/test_mistakes.py has them; what cannot run says so before it looks at anything."""
    lines = [tuple(words) for words, _, _ in MISTAKES]
    for words, (end, said) in zip(lines, type_all(installed / "python", lines), strict=True):
        assert "Traceback" not in said, (words, said)
        lacks = words[0] in ("report", "timeline", "diff") and "pip install 'rlprof-ops[analyze]'" in said
        assert lacks or (end not in (0, "traceback") and (said.strip() or words[0] == "patch-ray")), (
            words,
            said,
        )


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_extras_bring_what_we_say(extra: str) -> None:
    requires = [text for text in metadata.requires("rlprof-ops") or () if f'extra == "{extra}"' in text]
    names = {re.split(r"[^\w.-]", text)[0].lower() for text in requires}
    by_module = metadata.packages_distributions()
    for module in EXTRAS[extra]:
        pytest.importorskip(module)
        assert names & {name.lower() for name in by_module[module]}, module
