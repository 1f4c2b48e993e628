"""What `report` and `diff` end with where nothing can be read, and where a rule cannot be judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("msgspec")

from tests.analyze.fake_run import make_run

from rlprof_ops.cli import cli


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of one step, and one whose only report is garbage."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "good", ranks=1, steps=(3,))
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "w_rank0.pt.trace.json").write_text("garbage")
    return tmp_path


def typed(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "-j", "1"])


def test_a_report_of_nothing_is_no_success(runs: Path) -> None:
    done = typed("report", "garbage")
    assert done.exit_code == 3, done.output
    assert done.stderr == "rlprof: garbage: none of its reports could be read\n"
    assert "not read" in done.stdout and "w_rank0.pt.trace.json" in done.stdout


@pytest.mark.parametrize(("rules", "code"), [((), 3), (("--fail-if", "step>5%"), 4)])
def test_a_comparison_with_nothing_passes_no_rule(runs: Path, rules: tuple[str, ...], code: int) -> None:
    done = typed("diff", "good", "garbage", *rules)
    assert done.exit_code == code, done.output
    assert "garbage: nothing of it could be read" in done.stderr


def test_a_rule_that_cannot_be_judged_is_not_kept(runs: Path) -> None:
    done = typed("diff", "good", "good", "--fail-if", "step>5%")
    assert done.exit_code == 4, done.output
    assert "not judged step>5%: a run has a single step" in done.stderr
    assert typed("diff", "good", "good").exit_code == 0
