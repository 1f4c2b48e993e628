"""Model FLOPs utilisation: the model's own work in a phase, as a share of what its GPUs could have done.

Work by the usual estimate (Kaplan et al., 2020; PaLM, appendix B, without attention's quadratic part): 6 N
FLOPs a token where it is trained on, 2 N where it only passes forward; N: the parameters that a token meets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean

from rlprof_ops.analyze.gpu_peaks import gpu_peak
from rlprof_ops.analyze.model_size.parameters import ModelSize, read_config, told_parameters
from rlprof_ops.analyze.report_model import GpuRow, MfuAnswer, MfuRow, PhaseRow, RankRow
from rlprof_ops.analyze.run.identity import role_of
from rlprof_ops.analyze.whole_run.run_data import WholeRun
from rlprof_ops.errors import UsageError
from rlprof_ops.request import server_of

FLOPS_A_TOKEN = {"train": 6, "generation": 2, "logprob": 2, "ref_logprob": 2}


@dataclass(frozen=True)
class StatedModel:
    """What was told of the model. `tokens_per_step` None: as the recorder counted; `peak_tflops` None: by the
    GPU's name.
    """

    model: ModelSize
    tokens_per_step: int | None = None
    peak_tflops: float | None = None


def told(
    params: str | None, config: Path | None, tokens_per_step: int | None, peak_tflops: float | None
) -> StatedModel | None:
    """What the options of `rlprof report` tell; None where they tell no model. Raises `UsageError`."""
    if params is not None and config is not None:
        raise UsageError(f"--model-params {params} and --model-config {config}: give one of them")
    if params is None and config is None:
        options = (("--tokens-per-step", tokens_per_step), ("--peak-tflops", peak_tflops))
        for option, value in options:
            if value is not None:
                raise UsageError(f"{option} {value:g}: MFU needs --model-params or --model-config too")
        return None
    model = told_parameters(params) if params is not None else read_config(Path(config or ""))
    return StatedModel(model, tokens_per_step, peak_tflops)


def utilisation(
    said: StatedModel,
    phases: Sequence[PhaseRow],
    ranks: Sequence[RankRow],
    gpus: Sequence[GpuRow],
    whole: WholeRun | None,
    world: Mapping[str, int],
) -> MfuAnswer:
    """One row a role and phase of `FLOPS_A_TOKEN`, for the workers of a role share its tokens; `untold` says
    why there is none.

    Parameters
    ----------
    world: worker -> its ranks in the whole job, where the manifest tells them: the tokens of a step are
        shared among all of them, captured or not.
    """
    tokens, source = _tokens(said, whole)
    rows: list[MfuRow] = []
    missing: list[str] = []
    answer = MfuAnswer(
        parameters=said.model.total,
        met=said.model.met,
        model=said.model.said_by,
        tokens_per_step=tokens,
        tokens_from=source,
        rows=rows,
        untold=[source] if tokens is None else missing,
    )
    if tokens is None:
        return answer
    names = {(gpu.rank, gpu.device): gpu.name for gpu in gpus}
    for role, phase, parts in _by_role(phases, ranks):
        found = _row(said, role, phase, parts, tokens, names, ranks, world)
        if isinstance(found, str):
            missing += [found] * (found not in missing)
        else:
            rows.append(found)
    if not rows and not missing:
        missing.append(f"no phase of {', '.join(FLOPS_A_TOKEN)} was captured")
    return answer


def _tokens(said: StatedModel, whole: WholeRun | None) -> tuple[int | None, str]:
    if said.tokens_per_step is not None:
        return said.tokens_per_step, f"--tokens-per-step {said.tokens_per_step}"
    rollout = whole.rollout if whole else None
    if rollout and rollout.tokens:
        return rollout.tokens + rollout.prompt_tokens, "engines: prompt and generated tokens a step"
    return None, "nothing tells the tokens of a step: no engine was recorded; give --tokens-per-step"


def _by_role(
    phases: Sequence[PhaseRow], ranks: Sequence[RankRow]
) -> Iterator[tuple[str, str, list[PhaseRow]]]:
    """The rows of workers that do the work of a role, by role and phase: a server that has inner workers
    leaves all of it to them.
    """
    groups: dict[tuple[str, str], list[PhaseRow]] = defaultdict(list)
    for row in phases:
        if row.phase in FLOPS_A_TOKEN and row.by_rank and not ranks[row.by_rank[0][0]].controller:
            groups[role_of(row.worker), row.phase].append(row)
    for (role, phase), group in groups.items():
        servers = {server_of(row.worker) for row in group}
        yield role, phase, [row for row in group if row.worker not in servers]


def _row(
    said: StatedModel,
    role: str,
    phase: str,
    parts: Sequence[PhaseRow],
    tokens: int,
    names: Mapping[tuple[int, int], str],
    ranks: Sequence[RankRow],
    world: Mapping[str, int],
) -> MfuRow | str:
    captured = [rank for part in parts for rank, _, _ in part.by_rank]
    seen = [name for (rank, _), name in names.items() if rank in captured]
    if not seen and said.peak_tflops is None:
        return f"{role}: no report of it has GPU work, so its GPUs are unknown; give --peak-tflops"
    peak = said.peak_tflops
    if peak is None:
        peaks = {name: gpu_peak(name) for name in seen}
        unknown = sorted(name or "a GPU without a name" for name, known in peaks.items() if known is None)
        if unknown:
            return f"{role}: the peak of {', '.join(unknown)} is not known here; give --peak-tflops"
        # of GPUs that differ, all are counted: the mean of what each can do
        peak = fmean(known.tflops for known in map(gpu_peak, seen) if known)
    a_process = max(len(seen), len(captured)) / len(captured)
    told = max(world.get(worker, 0) for worker in (role, *(part.worker for part in parts)))
    gpus = round(a_process * _processes([ranks[rank] for rank in captured], told))
    factor = FLOPS_A_TOKEN[phase]
    mean_ns = round(sum(part.mean_ns * part.ranks for part in parts) / sum(part.ranks for part in parts))
    achieved = factor * said.model.met * tokens / max(mean_ns / 1e9, 1e-9) / gpus / 1e12
    return MfuRow(
        worker=role,
        phase=phase,
        flops_a_token=factor,
        gpus=gpus,
        mean_ns=mean_ns,
        tflops=round(achieved, 4),
        peak_tflops=round(peak, 2),
        share=round(achieved / peak, 5),
    )


def _processes(captured: Sequence[RankRow], told: int) -> int:
    """The processes of a role in the whole job, of which `told` ranks are known. Inner workers have the rank
    of their server: it has as many as were captured of the one with most, and so has every other server.
    """
    of_rank: dict[int, set[str]] = defaultdict(set)
    for row in captured:
        of_rank[row.rank].add(row.worker)
    a_rank = max(map(len, of_rank.values()))
    return a_rank * max(told, len(of_rank), ceil(len(captured) / a_rank))
