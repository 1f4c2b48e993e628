"""roctx without an AMD machine: a library with its two functions, compiled here, that writes down the
calls.
"""

import shutil
import subprocess

import pytest

from rlprof_ops.runtime.ranges.emitters import RoctxRanges

SOURCE = """
#include <stdint.h>
#include <stdio.h>
static uint64_t next = 41;
uint64_t roctxRangeStartA(const char *name) { FILE *f = fopen(LOG, "a"); fprintf(f, "+%s ", name); fclose(f); return ++next; }
void roctxRangeStop(uint64_t id) { FILE *f = fopen(LOG, "a"); fprintf(f, "-%lu ", (unsigned long) id); fclose(f); }
"""


def test_each_range_ends_itself(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    log, library = tmp_path / "calls", tmp_path / "libroctx64.so"
    command = [compiler, "-shared", "-fPIC", f'-DLOG="{log}"', "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=SOURCE, text=True, check=True, timeout=60)

    ranges = RoctxRanges(("libnowhere.so", str(library)))
    first, second = ranges.start("train"), ranges.start("reply")
    ranges.end(first)
    ranges.end(second)

    assert log.read_text() == "+train +reply -42 -43 "


def test_without_the_library_it_says_so():
    with pytest.raises(ImportError, match=r"none of libnowhere\.so is there"):
        RoctxRanges(("libnowhere.so",))
