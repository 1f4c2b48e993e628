"""No value from outside reaches bash's arithmetic unchecked: there `x[$(command)]` is executed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
SCRIPTS = sorted([HOME / "ray.sub", *HOME.glob("scripts/**/*.sh"), *HOME.glob("env/*.sh")])
FROM_OUTSIDE = (
    "RLPROF_DRAIN_SECONDS",
    "RLPROF_HARVEST_SECONDS",
    "RLPROF_REPORT_SECONDS",
    "SLURM_CPUS_ON_NODE",
    "SLURM_HET_SIZE",
    "SLURM_JOB_ID",
    "SLURM_JOB_NUM_NODES",
    "SLURM_RESTART_COUNT",
)
# What stands in an arithmetic place, and why it can be nothing but a number.
NUMBERS = {
    **dict.fromkeys(FROM_OUTSIDE, "knobs::load gives it to common::numbers"),
    **dict.fromkeys(("each", "here", "tasks"), "matched with [0-9]+ before"),
    "bits": "matched with [0-9]+ before, and base 10 is said",
    "value": "common::numbers itself, after its match",
    "node": "matched with [0-9]+, and given to common::numbers",
    **dict.fromkeys(("a", "b", "c", "d", "floor"), "given to common::numbers where it is read"),
    **dict.fromkeys(("number", "try", "code", "report", "base"), "a number from the first on"),
    "cpus": "SLURM_CPUS_ON_NODE",
    "job": "SLURM_JOB_ID, in slurm::free_ports",
    "restart": "SLURM_RESTART_COUNT",
    "mode": "from `stat -c %a`",
    "forbidden": "a constant of the callers",
    "port": "hexadecimal digits of the kernel, and `printf %d` evaluates nothing",
    "_RLPROF_REMOVE_SECONDS": "a constant",
    "_RLPROF_EARLIER_SECONDS": "a constant",
    "SECONDS": "bash's own",
    "until": "a sum of these",
    "seconds": "of these, in job::_harvest",
    "now": "from `printf %(%s)T`",
    "options": "a difference of lengths",
    "EUID": "bash's own",
    "BASH_REMATCH": "matched with [0-9]+ before",
}
_PLACES = re.compile(
    r"""\$?\(\((?P<sum>(?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\)   # (( )) and $(( ))
    |\blet\s+(?P<let>[^;&|]*)
    |\b(?:declare|local|typeset)\s+-\w*i\w*\s+(?P<declared>[^;&|]*)
    |\[\[?\s(?P<test>[^\]]*\s-(?:eq|ne|lt|gt|le|ge)\s[^\]]*)\]
    |printf\s+(?:-v\s+\S+\s+)?(?:--\s+)?['"][^'"]*%[0-9]*[dioxu][^'"]*['"]\s+(?P<printed>[^|;]*)
    |\$\{\#?\w+\[(?P<index>[^\]@*]+)\][^}]*\}
    |\$\{[\w@*]+(?:\[[@*]\])?:(?P<slice>\s*[^-=+?}][^}]*)\}""",
    re.VERBOSE,
)
_NAMED_ARRAYS = {"taken", "salvages"}  # `local -A`: their indices are text


def uses(text: str) -> list[tuple[int, str]]:
    """Line and content of each place where bash evaluates a number."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for match in _PLACES.finditer(line):
            if match["index"] and re.match(r"\$\{#?(\w+)\[", match[0])[1] in _NAMED_ARRAYS:
                continue
            found.append((number, next(group for group in match.groups() if group)))
    return found


def names(expression: str) -> set[str]:
    """The variables of an expression; substituted commands, numbers of arguments and lengths are none."""
    expression = re.sub(r"\$\{#[^}]*\}|\$#|\$\?|8#\$\(umask\)|\$\(slurm::_number [^)]*\)", "0", expression)
    expression = re.sub(r"0x(?=\$)|\b(8|10)#|\s-(eq|ne|lt|gt|le|ge)\s", " ", expression)
    return set(re.findall(r"(?<![\w%])[A-Za-z_]\w*", re.sub(r"\b\d\w*", "", expression))) - {"umask"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(HOME)))
def test_every_variable_in_arithmetic_is_known_to_be_a_number(script):
    unknown = [
        f"{script.name}:{line}: {name} in {expression.strip()!r}"
        for line, expression in uses(script.read_text())
        for name in sorted(names(expression))
        if name not in NUMBERS
    ]
    assert not unknown, "check it with common::numbers and name it in NUMBERS:\n" + "\n".join(unknown)


def test_the_look_for_arithmetic_sees_its_forms():
    lines = (
        *("(( x ))", "y=$(( 1 + z ))", "let v=w", "[[ $a -eq 1 ]]", "printf '%d' \"$b\"", '"${c[d]}"'),
        *("${e:f}", "# (( no ))", "${g:-h}", '"${taken[i]}"', "(( $# >= 1 ))", "(( ${#nodes[@]} ))"),
    )
    text = "\n".join(lines)
    assert set().union(*(names(expression) for _, expression in uses(text))) == {
        *("x", "z", "v", "w", "a", "b", "d", "f")
    }
    assert sum(len(uses(script.read_text())) for script in SCRIPTS) > 30


LOAD = """
set -euo pipefail
for file in common knobs slurm harvest_job job; do source "$1/scripts/lib/$file.sh"; done
knobs::load "$1"
"""


def run(tmp_path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    surroundings = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SLURM_SUBMIT_DIR": str(tmp_path)}
    return subprocess.run(
        ["bash", "-c", LOAD + script, "bash", str(HOME)],
        env={**surroundings, "SLURM_JOB_ID": "4711", "RLPROF_SITE_ENV": str(site(tmp_path)), **env},
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def site(tmp_path: Path) -> Path:
    (tmp_path / "site.env").touch()
    return tmp_path / "site.env"


USE = """
RLPROF_RUN_DIR=$PWD RLPROF_NODES=n1 SRUN=(true) WHY="" RLPROF_HARVEST_JOB=1
harvest_job::is_wanted || true
harvest_job::_options "$PWD" || true
job::harvest_here || true
touch run.json; job::salvage 0 || true
slurm::free_ports "${SLURM_JOB_ID}" || true
(( ${SLURM_HET_SIZE:-0} < 2 )) || true
"""
ODD = [
    "x[0$(touch executed)]=1",
    "a[$(touch executed)]",
    "1e3",
    "-5",
    " 7",
    "0x10",
    "1;touch executed",
    "9" * 30,
]


@pytest.mark.parametrize("name", FROM_OUTSIDE)
@pytest.mark.parametrize("value", ODD, ids=lambda value: value[:12])
def test_a_value_that_is_no_number_is_refused_by_name_and_not_executed(tmp_path, name, value):
    (tmp_path / "logs").mkdir()
    done = run(tmp_path, USE, **{name: value})
    assert not (tmp_path / "executed").exists()
    assert done.returncode == 2, done
    assert f"{name} is '{value}'" in done.stderr


def test_a_sites_file_is_checked_too(tmp_path):
    site(tmp_path).write_text("RLPROF_HARVEST_SECONDS=x[0$(touch executed)]=1\n")
    done = run(tmp_path, USE)
    assert (done.returncode, (tmp_path / "executed").exists()) == (2, False), done


def test_leading_zeros_mean_no_other_base(tmp_path):
    told = 'echo "${RLPROF_DRAIN_SECONDS} $(( RLPROF_DRAIN_SECONDS ))"'
    done = run(tmp_path, told, RLPROF_DRAIN_SECONDS="0090")
    assert done.stdout == "90 90\n", done
    inside = (
        "slurm::_is_within 10.08.0.9 10.8.0.0/016 && echo within;"
        " slurm::_is_within 10.9.0.1 10.8.0.0/16 || echo out"
    )
    assert run(tmp_path, inside).stdout == "within\nout\n"
