"""What a small report does not need is not imported: it would be half of its time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.analyze.shared import kernel, mark, write_trace

SLOW = ("asyncio", "multiprocessing", "numpy.ma", "pyarrow", "rich", "sqlite3", "urllib.request")


def test_a_small_report_imports_nothing_that_is_slow_and_unused(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json.gz", [kernel("k", 10.0, 1.0), mark("step 3", 0.0, 50.0)])
    asked = (
        "import sys; from rlprof_ops.cli import main\n"
        "sys.argv = ['rlprof', 'report', sys.argv[1], '--json']\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print([name for name in {SLOW} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stderr.strip().splitlines()[-1] == "[]"
