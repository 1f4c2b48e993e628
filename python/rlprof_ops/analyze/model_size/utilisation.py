"""Model FLOPs utilisation: the model's own work in a phase, as a share of what its GPUs could have done.

Work by the usual estimate (Kaplan et al., 2020; PaLM, appendix B, without attention's quadratic part): 6 N
FLOPs a token where it is trained on, 2 N where it only passes forward; N: the parameters that a token meets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rlprof_ops.analyze.gpu_peaks import gpu_peak
from rlprof_ops.analyze.model_size.parameters import ModelSize, read_config, told_parameters
from rlprof_ops.analyze.report_model import GpuRow, MfuAnswer, MfuRow, PhaseRow, RankRow
from rlprof_ops.analyze.whole_run.run_data import WholeRun
from rlprof_ops.errors import UsageError

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
    """One row a worker and phase of `FLOPS_A_TOKEN`; `untold` says why there is none.

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
    names: dict[str, dict[tuple[int, int], str]] = defaultdict(dict)  # worker -> (rank, device) -> name
    for gpu in gpus:
        names[ranks[gpu.rank].worker][gpu.rank, gpu.device] = gpu.name
    for row in phases:
        factor = FLOPS_A_TOKEN.get(row.phase)
        captured = [rank for rank, _, _ in row.by_rank]
        if factor is None or not captured or ranks[captured[0]].controller:
            continue
        found = _row(said, row, factor, tokens, names[row.worker], captured, world)
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


def _row(
    said: StatedModel,
    row: PhaseRow,
    factor: int,
    tokens: int,
    names: Mapping[tuple[int, int], str],
    captured: Sequence[int],
    world: Mapping[str, int],
) -> MfuRow | str:
    worker, seen = row.worker, {key: name for key, name in names.items() if key[0] in captured}
    if not seen and said.peak_tflops is None:
        return f"{worker}: no report of it has GPU work, so its GPUs are unknown; give --peak-tflops"
    peak = said.peak_tflops
    if peak is None:
        peaks = {name: gpu_peak(name) for name in seen.values()}
        unknown = sorted(name or "a GPU without a name" for name, known in peaks.items() if known is None)
        if unknown:
            return f"{worker}: the peak of {', '.join(unknown)} is not known here; give --peak-tflops"
        # of GPUs that differ, all are counted: the mean of what each can do
        peak = fmean(known.tflops for known in map(gpu_peak, seen.values()) if known)
    a_rank = max(len(seen), len(captured)) / len(captured)
    gpus = round(a_rank * max(world.get(worker, 0), len(captured)))
    flops = factor * said.model.met * tokens
    seconds = row.mean_ns / 1e9
    achieved = flops / max(seconds, 1e-9) / gpus / 1e12
    return MfuRow(
        worker=worker,
        phase=row.phase,
        flops_a_token=factor,
        gpus=gpus,
        mean_ns=row.mean_ns,
        tflops=round(achieved, 4),
        peak_tflops=round(peak, 2),
        share=round(achieved / peak, 5),
    )
