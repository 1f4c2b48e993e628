"""The table of one run of the fault matrix, which `make test-faults` writes to docs/faults.md."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Row:
    """One line of the table."""

    name: str
    what: str
    state: str
    first: str
    second: str
    reason: str
    seconds: float


@dataclass
class Table:
    """The rows so far, and the helpers that the kill test has killed, by kind."""

    rows: list[Row] = field(default_factory=list)
    kills: dict[str, int] = field(default_factory=dict)

    def text(self) -> str:
        lines = [
            "# What is left when a job ends",
            "",
            (
                "Made by `make test-faults` from one run on the sandbox: real Slurm, Ray, nsys and"
                " torch.profiler on two nodes, two workers, each"
            ),
            (
                "profiled by nsight and torch at once. The first window (steps 2 to 3) has ended when the"
                " fault comes, the second (steps 9 to 10)"
            ),
            (
                "is open. Seconds are from the fault to the end of the job, harvest included; two jobs run at"
                " a time."
            ),
            "",
            "| how the job ends | Slurm says | windows that had ended | the open window | its reason | s |",
            "|---|---|---|---|---|---|",
        ]
        for row in self.rows:
            reason = row.reason.replace("|", "\\|").replace("\n", " ")
            lines.append(
                f"| {row.name}: {row.what} | {row.state} | {row.first} | {row.second} | {reason} |"
                f" {row.seconds:.0f} |"
            )
        if self.kills:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
            lines += [
                "",
                (
                    f"Helpers that got SIGKILL during one more job, {sum(self.kills.values())} in all, its"
                    " training unchanged and no window that had"
                ),
                f"ended lost: {kinds}.",
            ]
        return "\n".join(lines) + "\n"


TABLE = Table()
