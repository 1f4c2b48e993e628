"""docs/traces.md: the names in its table say what the table says of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("msgspec")

from tests.analyze.shared import kernel, write_trace

from rlprof_ops.analyze.run.identity import find_reports

PAGE = Path(__file__).parents[2] / "docs" / "traces.md"
ROWS = re.findall(r"^\| (.+?) \| (`.+?`) \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("who", "names", "worker", "rank"), ROWS)
def test_a_name_says_what_its_row_says(who: str, names: str, worker: str, rank: str, tmp_path: Path) -> None:
    for name in re.findall("`(.+?)`", names):
        write_trace(tmp_path / name, [kernel("a", 0, 9)])
        (report,) = find_reports(tmp_path)
        # A row with a condition is of a trace that tells its host; this one tells none.
        assert report.worker == (worker if "," not in worker else "gpu7"), who
        number = int(rank.rpartition(" ")[2]) if rank[-1].isdigit() else None
        told = report.ordinal if rank.startswith("of the trace, or") else report.rank
        assert told == number, who
        (tmp_path / name).unlink()


def test_the_table_has_every_tool() -> None:
    tools = " ".join(row[0] for row in ROWS)
    assert all(
        tool in tools for tool in ("torch", "vLLM", "SGLang", "verl", "NeMo RL", "TRL", "Megatron", "nsys")
    )
