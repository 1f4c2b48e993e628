"use strict";
// What generation did inside: curves over the phase, its long tail, prefill and decode.
function showRollout(D, ui) {
  const {$, el, time, pct, count, counted, table, ns} = ui, R = D.whole_run && D.whole_run.rollout, HUES = ["#3b82c4", "#cc5f8f", "#e08a3c", "#59a14f", "#8e6bbf"];
  const ofPhase = (k, n) => `${Math.round(100 * (k + .5) / n)} % of the phase`;
  function chart(box, title, lines, at = ofPhase) {
    const NS = "http://www.w3.org/2000/svg", svg = document.createElementNS(NS, "svg"), legend = el("div", "legend"), n = lines[0].values.length;
    svg.setAttribute("viewBox", "0 0 1000 120"); svg.setAttribute("preserveAspectRatio", "none"); svg.setAttribute("role", "img"); svg.setAttribute("aria-label", title); svg.classList.add("curves");
    lines.forEach((line, i) => {
      const top = line.top || line.of || Math.max(...line.values, 1e-9), path = document.createElementNS(NS, "polyline");
      path.setAttribute("points", line.values.map((v, k) => `${(1000 * (k + .5) / n).toFixed(1)},${(116 - 112 * v / top).toFixed(1)}`).join(" "));
      for (const [k, v] of Object.entries({fill: "none", stroke: HUES[i], "stroke-width": 1.8, "vector-effect": "non-scaling-stroke"})) path.setAttribute(k, v);
      svg.append(path);
    });
    ui.legend(legend, lines.map((line, i) => [`${line.name} ≤ ${line.top ? pct(Math.max(...line.values)) : count(Math.round(Math.max(...line.values)))}`, HUES[i]]));
    svg.addEventListener("mousemove", e => { const a = svg.getBoundingClientRect(), k = Math.min(n - 1, Math.max(0, Math.floor((e.clientX - a.left) / a.width * n)));
      ui.showTip(e, [at(k, n), ...lines.map(line => `${line.name}: ${line.top ? pct(line.values[k]) : count(Math.round(line.values[k] * 10) / 10)}`)].join("\n")); });
    svg.addEventListener("mouseleave", ui.hideTip);
    box.append(el("h3", "", title), legend, svg);
  }
  if (R) {
    $("rollout-text").textContent = `Mean of ${counted(R.steps, "step")}: generation takes ${time(R.phase_ms * 1e6)} of a step of ${time(R.step_ms * 1e6)}; ${count(R.tokens)} tokens of ${count(R.prompt_tokens)} prompt tokens, ${count(Math.round(R.tokens_s))} tokens a second; ${Math.round(R.batch_mean)} requests at a time, ${Math.round(R.batch_peak)} at most. ${R.preempted ? `${+R.preempted.toPrecision(3)} requests a step are preempted, in ${counted(R.steps_preempted, "step")}` : "No request was preempted"}; the KV cache is ${pct(R.cache_peak)} full at most.`;
    chart($("rollout-curves"), "Over the phase, by the engines' own numbers", [{name: "running", values: R.running_at}, {name: "waiting", values: R.waiting_at}, {name: "tokens/s", values: R.tokens_s_at}, {name: "prompt tokens/s", values: R.prompt_tokens_s_at}, {name: "KV cache", values: R.cache_at, top: 1}]);
  }
  const Q = D.whole_run && D.whole_run.requests, done = Q && Q.done.length ? Q : R;
  if (done) table($("rollout-done"), "When the requests were done", [{name: "of the requests", num: true, value: r => r.share, text: r => pct(r.share)}, {name: "done after, of the phase", num: true, value: r => 1 - r.left, text: r => pct(1 - r.left)}, {name: "the rest takes", num: true, unit: "ns", bar: true, value: r => Math.round(r.saves_ms * 1e6), text: r => time(r.saves_ms * 1e6), title: "A step: the most that cutting there saves"}, {name: "of the step", num: true, value: r => r.saves_ms / done.step_ms, text: r => pct(r.saves_ms / done.step_ms)}, {name: "requests left", num: true, value: r => r.requests}, {name: "steps", num: true, value: r => r.steps}], done.done);
  if (Q) {
    const ms = (name, value, more = {}) => ({name, num: true, unit: "ns", value: r => value(r) === null ? null : Math.round(value(r) * 1e6), text: r => value(r) === null ? "–" : time(value(r) * 1e6), ...more}), share = (name, value, more = {}) => ({name, num: true, value, text: r => value(r) === null ? "–" : pct(value(r)), ...more});
    const replica = r => `${r.worker} ${r.rank}` + (Q.replicas.filter(x => x.worker === r.worker && x.rank === r.rank).length > 1 && r.pid ? ` (pid ${r.pid} on ${r.node})` : "");
    table($("requests-last"), "The last requests of each step" + (Q.told > Q.steps.length ? `, of the ${Q.steps.length} with the longest tails` : ""), [{name: "step", num: true, value: r => r.of.step}, {name: "request", value: r => r.id, cls: "wide"}, {name: "replica", value: replica}, {name: "tokens", num: true, value: r => r.tokens, text: r => count(r.tokens)}, {name: "median request", num: true, value: r => r.of.median_tokens}, {name: "prompt tokens", num: true, value: r => r.prompt_tokens, text: r => count(r.prompt_tokens)}, ms("took", r => r.ms, {bar: true}), ms("queued", r => r.queued_ms), {name: "preempted", num: true, value: r => r.preemptions}, {name: "ended by", value: r => r.reason}, {name: "turn", num: true, value: r => r.turn, text: r => r.turn > 1 ? `${r.turn}, ${time(r.between_ms * 1e6)} between` : "1", title: "Of its sample, and the time between its turns: tools and the like"}, {name: "after its group", num: true, unit: "ns", value: r => r.answers ? Math.round(r.alone_ms * 1e6) : null, text: r => r.answers ? `${time(r.alone_ms * 1e6)} after ${r.answers - 1}` : "–", title: "How long it went on when the other answers to its prompt were done"}, share("of the phase after 95 %", r => r.of.left[2]), {name: "replicas, max/mean", num: true, value: r => r.of.imbalance, text: r => r.of.imbalance === null ? "–" : r.of.imbalance.toFixed(2), title: "When the last replica was done, over the mean of all; 1 is even"}], Q.steps.flatMap(of => of.last.map(r => ({...r, of}))), {limit: 12});
    table($("requests-groups"), "Prompts whose other answers waited longest for the last one", [{name: "step", num: true, value: r => r.step}, {name: "last request", value: r => r.id, cls: "wide"}, {name: "replica", value: replica}, {name: "answers", num: true, value: r => r.answers}, ms("last one alone", r => r.alone_ms, {bar: true, title: "From when all other answers to its prompt were done"}), ms("first to last", r => r.spread_ms), {name: "its tokens", num: true, value: r => r.tokens, text: r => count(r.tokens)}, {name: "median of the others", num: true, value: r => r.median_tokens}, {name: "turns", num: true, value: r => r.turns}, ms("between its turns", r => r.turns > 1 ? r.between_ms : null)], Q.steps.flatMap(of => of.groups ? of.groups.last.map(r => ({...r, step: of.step})) : []).sort((a, b) => b.alone_ms - a.alone_ms), {limit: 12});
    const L = Q.lengths;
    if (L) {
      const box = $("requests-lengths"), S = L.steps, q = L.quantiles.map(v => count(Math.round(v)));
      if (L.counts.length > 1) chart(box, `Answers by length: ${q[0]} tokens in the median, 90 % at most ${q[1]}, 99 % at most ${q[2]}, the longest ${q[3]}; ${pct(L.at_limit)} ended by a limit`, [{name: "answers", values: L.counts}, {name: "ended by a limit", values: L.cut, of: Math.max(...L.counts)}], k => `${count(L.edges[k])} to ${count(L.edges[k + 1] - 1)} tokens`);
      if (S.step.length > 1) { const most = Math.max(...S.longest);
        chart(box, "Lengths of answers over the steps, in tokens", [{name: "median", values: S.median, of: most}, {name: "95 % shorter", values: S.long, of: most}, {name: "longest", values: S.longest, of: most}, {name: "mean", values: S.mean, of: most}], k => `step ${S.step[k]}, ${pct(S.at_limit[k])} ended by a limit, ${pct(S.carried[k])} begun in an earlier step` + (S.preempted ? `, ${counted(S.preempted[k], "request")} preempted` : "")); }
    }
    table($("requests-replicas"), "Replicas, mean of the steps", [{name: "replica", value: replica}, {name: "node", value: r => r.node}, {name: "requests", num: true, value: r => r.requests}, {name: "tokens", num: true, value: r => r.tokens, text: r => count(Math.round(r.tokens))}, share("idle", r => r.idle, {bar: true, title: "Without any request, of the phase"}), share("done after", r => r.end), {name: "steps", num: true, value: r => r.steps}], Q.replicas);
  }
  const told = D.serving.find(r => r.batch.length);
  if (told) chart($("rollout-batch"), `Requests decoded at a time over ${told.phase || "the capture"} of ${told.worker}, by its passes`, [{name: "requests", values: told.batch}]);
  table($("rollout-serving"), "Prefill and decode on the GPUs", [{name: "worker", value: r => r.worker}, {name: "phase", value: r => r.phase || "–"}, {name: "work", value: r => r.kind}, ns("time", "total_ns", {bar: true}), {name: "of the phase's GPU work", num: true, value: r => r.share, text: r => pct(r.share)}, {name: "told by", value: r => r.told_by}, {name: "count", num: true, value: r => r.count, text: r => count(r.count)}, {name: "requests decoded a pass", num: true, value: r => r.batch_mean}, {name: "prompt tokens", num: true, value: r => r.prompt_tokens || null, text: r => r.prompt_tokens ? count(r.prompt_tokens) : "–"}], D.serving);
  if (!R && !Q && !D.serving.length) ui.hide("rollout");
}
