"""One line of the doctor's answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from rlprof_ops.host import command

OK, WARN, FAIL = "ok", "warn", "fail"
STATES = (OK, WARN, FAIL)


@dataclass(frozen=True)
class CheckResult:
    """`place`: login, or a node's name; `said`: what was found; `fix`: what to do, empty when ok."""

    check: str
    state: str
    said: str
    fix: str = ""
    place: str = "login"

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


Check = Callable[[], Iterable[CheckResult]]


def run_all(
    checks: Mapping[str, Check], place: str, progress: Callable[[str], None] = lambda name: None
) -> list[CheckResult]:
    """Every check's findings; one that breaks is itself a finding, so that a doctor never ends half way.
    `progress` gets the name of each check before it runs.
    """
    found = []
    for name, check in checks.items():
        progress(name)
        try:
            found += [replace(finding, place=place) for finding in check()]
        except Exception as error:  # whatever a strange machine makes a check raise
            found.append(
                CheckResult(
                    name,
                    WARN,
                    f"the check itself failed: {type(error).__name__}: {error}",
                    "report this",
                    place,
                )
            )
    return found


def output(argv: Sequence[str], seconds: float = 20, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit code and both outputs of a command; (127, reason) when it cannot run or is not done in time."""
    done = command.run(argv, seconds, env)
    return done.returncode, (done.stdout + done.stderr).strip()


def last_line(text: str) -> str:
    """The last line with something in it, at most 200 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
