"""What generation did inside, and the model's work against the GPUs' peak, as lines for the terminal."""

from __future__ import annotations

from rlprof_ops.analyze.output.text import counted, duration, percent
from rlprof_ops.analyze.report_model import Answer, MfuAnswer, ServingRow
from rlprof_ops.analyze.whole_run.run_data import Lengths, QueueReplay, Rollout, RolloutRequests, Staleness

MAX_LINES = 4


def rollout_lines(answer: Answer) -> list[str]:
    """By the engines' own numbers where they were recorded, and by traces of what the GPUs did."""
    whole = answer.whole_run
    lines = _by_engines(whole.rollout) if whole and whole.rollout else []
    lines += _by_requests(whole.requests) if whole and whole.requests else []
    lines += [_staleness(whole.staleness)] if whole and whole.staleness else []
    return lines + [_by_trace(row) for row in answer.serving[:MAX_LINES]]


def _by_engines(rollout: Rollout) -> list[str]:
    steps = counted(rollout.steps, "step")
    lines = [
        f"Engines, mean of {steps}: {rollout.tokens:,} tokens of {rollout.prompt_tokens:,} prompt"
        f" tokens a step, {rollout.tokens_s:,.0f} tokens/s; {rollout.batch_mean:.0f} requests at a time"
        f" ({rollout.batch_peak:.0f} at most); {rollout.preempted:g} preempted a step, KV cache"
        f" {percent(rollout.cache_peak)} full at most."
    ]
    if rollout.done:
        parts = [
            f"{percent(done.share)} after {percent(1 - done.left)}"
            f" (then {duration(round(1e6 * done.saves_ms))} more)"
            for done in rollout.done
        ]
        lines.append(f"Requests done, by share of the phase: {', '.join(parts)}.")
    return lines


def _by_requests(requests: RolloutRequests) -> list[str]:
    parts = [
        f"{duration(round(1e6 * done.saves_ms))} from {percent(done.share)} on ({percent(done.left)} of it)"
        for done in requests.done
    ]
    replicas = counted(len(requests.replicas), "replica") + (", some are missing" if requests.cut else "")
    lines = [
        f"Request by request, mean of {counted(requests.told, 'step')}:"
        f" {requests.requests / requests.told:.0f} requests on {replicas};"
        f" the phase went on for {', '.join(parts) or 'an untold time: they are too few'}."
    ]
    lines += [_lengths(requests.lengths)] if requests.lengths else []
    return lines + ([_replay(requests.replay)] if requests.replay else [])


def _lengths(lengths: Lengths) -> str:
    median, most, nearly_all, longest = (f"{value:,.0f}" for value in lengths.quantiles)
    steps = lengths.steps
    said = (
        f"Answers: median {median} tokens, 90 % at most {most}, 99 % at most {nearly_all}, the longest"
        f" {longest}; {percent(lengths.at_limit)} were ended by a limit"
    )
    if len(steps.step) > 1:
        said += f"; mean {steps.mean[0]:,.0f} in step {steps.step[0]}, {steps.mean[-1]:,.0f} in the last"
    if lengths.mean_carried and lengths.mean_others:
        said += (
            f"; {percent(lengths.carried)} were begun in an earlier step and are"
            f" {lengths.mean_carried / lengths.mean_others:.1f} times as long as the others"
        )
    if lengths.preempted:
        times = counted(lengths.preemptions or 0, "time")
        said += f"; {counted(lengths.preempted, 'request')} preempted, {times}"
    return said + "."


def _staleness(stale: Staleness) -> str:
    parts = [f"{percent(count / stale.samples)} {behind}" for behind, count in stale.behind[:MAX_LINES]]
    more = ", the others more" if len(stale.behind) > MAX_LINES else ""
    said = (
        f"Staleness of {stale.samples:,} {stale.unit}: {stale.mean:.2g} versions of the weights behind"
        f" those that were trained, at most {stale.most} ({', '.join(parts)}{more})"
    )
    return said + (f"; {percent(stale.mixed)} were made by several versions." if stale.mixed else ".")


def _replay(replay: QueueReplay) -> str:
    parts = []
    for each in replay.changes:
        what = {
            "length_limit": f"a limit of {each.value:,} tokens ({percent(each.cut)} of the answers cut)",
            "balance": "the replica with the least left for each request",
            "replicas": f"{each.value} replicas",
        }[each.kind]
        saves, error = (duration(round(1e6 * ms)) for ms in (max(0.0, each.saves_ms), each.error_ms))
        parts.append(f"{what} {saves} (error {error})")
    measured = " of ".join(duration(round(1e6 * ms)) for ms in (replay.replayed_ms, replay.measured_ms))
    steps = counted(replay.steps, "step")
    told = f"By replay of the requests of {replay.worker} in {steps} ({measured} measured)"
    if not parts:
        return f"{told}, no change can be told: it is too far from what was measured."
    return f"{told}, a step would be shorter with: {'; '.join(parts)}."


def _by_trace(row: ServingRow) -> str:
    batch = f", {row.batch_mean:.1f} requests decoded a pass" if row.batch_mean is not None else ""
    prompt = f", {row.prompt_tokens:,} prompt tokens" if row.prompt_tokens else ""
    where = f" in {row.phase}" if row.phase else ""
    return (
        f"{row.worker}{where}: {row.kind} {duration(row.total_ns)} of GPU work"
        f" ({percent(row.share)}), by {row.count:,} {row.told_by}{prompt}{batch}."
    )


def mfu_lines(mfu: MfuAnswer | None) -> list[str]:
    """The share of the GPUs' peak in each phase, and why one is not told."""
    if mfu is None:
        return []
    lines = [f"MFU not told: {reason}" for reason in mfu.untold]
    if not mfu.rows:
        return lines
    head = (
        f"MFU with N = {mfu.met / 1e9:,.3g} billion parameters a token meets ({mfu.model}),"
        f" {mfu.tokens_per_step:,} tokens a step ({mfu.tokens_from}):"
    )
    rows = [
        f"  {row.worker} {row.phase}: {percent(row.share)} of {counted(row.gpus, 'GPU')} at"
        f" {row.peak_tflops:g} TFLOP/s ({row.flops_a_token} N tokens in {duration(row.mean_ns)}:"
        f" {row.tflops:.3g} TFLOP/s each)"
        for row in mfu.rows
    ]
    return [head, *rows, *lines]
