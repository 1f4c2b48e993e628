"use strict";
// The run's whole history, rank by step, and the samples under the Gantt chart.
function makeWholeRun(D, ui) {
  const {$, el, time} = ui, R = D.whole_run, LEFT = 64, RIGHT = 10;
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const ms = v => time(v * 1e6);
  function surface(canvas, tall, width = canvas.parentElement.clientWidth - 42) {
    const ratio = devicePixelRatio || 1, g = canvas.getContext("2d");
    canvas.style.height = tall + "px"; canvas.style.width = width + "px"; canvas.width = width * ratio; canvas.height = tall * ratio;
    g.scale(ratio, ratio); g.font = "11px system-ui,sans-serif"; g.textBaseline = "middle";
    return [g, width];
  }
  // ---- samples of GPUs and engines, on the Gantt chart's own time
  const NAMES = {gpu: ["busy %", "memory MiB", "power W", "SM MHz"], engine: ["running", "waiting", "KV cache ‰", "tokens/s"]};
  const HUES = ["#3b82c4", "#cc5f8f", "#e08a3c", "#59a14f"];
  const lines = [];
  function prepareCurves() {
    const nodes = [...new Set(R.curves.map(c => c.node))].slice(0, 8);
    for (const node of nodes) for (const kind of ["gpu", "engine"]) {
      const found = R.curves.filter(c => c.node === node && (kind === "gpu") === c.of.startsWith("GPU "));
      if (!found.length) continue;
      const box = el("div"), canvas = el("canvas"), legend = el("div", "legend");
      box.append(el("h3", "", `${node}: ${kind === "gpu" ? ui.counted(found.length, "GPU") + ", mean" : found.map(c => c.of).join(", ")}`), legend, canvas);
      canvas.setAttribute("role", "img"); canvas.setAttribute("aria-label", "Samples of " + node); $("gantt-curves").append(box);
      ui.legend(legend, NAMES[kind].map((n, i) => [n, HUES[i]]));
      const at = new Map();
      for (const c of found) c.t_ms.forEach((t, i) => { const k = Math.round(t / 100); (at.get(k) || at.set(k, []).get(k)).push(c.figures.map(f => f[i])); });
      const times = [...at.keys()].sort((a, b) => a - b), mean = i => times.map(k => { const v = at.get(k); return v.reduce((s, r) => s + r[i], 0) / (kind === "gpu" ? v.length : 1); });
      lines.push({canvas, times: times.map(k => k * 1e5), figures: NAMES[kind].map((_, i) => mean(i)), names: NAMES[kind]});
    }
  }
  function curves(view, left, right) {
    for (const line of lines) {
      const [g, width] = surface(line.canvas, 84), x = t => left + (t / 1000 - view[0]) * (width - left - right) / Math.max(view[1] - view[0], 1e-3);
      g.save(); g.beginPath(); g.rect(left, 0, width - left, 84); g.clip();
      line.figures.forEach((values, i) => {
        const top = i === 0 && line.names[0] === "busy %" ? 100 : Math.max(...values, 1);
        g.strokeStyle = HUES[i]; g.lineWidth = 1.4; g.beginPath();
        values.forEach((v, k) => { const y = 78 - 72 * v / top; k ? g.lineTo(x(line.times[k]), y) : g.moveTo(x(line.times[k]), y); }); g.stroke();
      });
      g.restore(); g.fillStyle = css("--soft"); g.textAlign = "left";
      line.figures.forEach((values, i) => g.fillText(`${line.names[i]} ≤ ${ui.count(Math.round(Math.max(...values)))}`, 6, 12 + 19 * i));
    }
  }
  if (!R) { ui.hide("whole-run"); return {curves: null}; }
  prepareCurves();

  // ---- every step
  const n = R.steps.length, SIGNS = {window: "▾", finding: "!", checkpoint: "◦", restart: "↻"};
  const lastStep = R.steps[n - 1] + R.counts[n - 1] - 1;
  const named = i => R.counts[i] > 1 ? `steps ${R.steps[i]}:${R.steps[i] + R.counts[i]}` : `step ${R.steps[i]}`;
  const place = step => { let a = 0, b = n - 1; while (a < b) { const m = (a + b + 1) >> 1; R.steps[m] <= step ? a = m : b = m - 1; } return a; };
  const marks = R.marks.reduce((m, k) => { const i = place(k.step); (m.get(i) || m.set(i, []).get(i)).push(k); return m; }, new Map());
  const sorted = [...R.most_ms].sort((a, b) => a - b), top = Math.max(Math.min(sorted[n - 1], sorted[Math.floor(n * .98)] * 2.5), 1e-3);
  const x = (i, width) => LEFT + i * (width - LEFT - RIGHT) / n;
  function axes(g, width, tall, high, begin) {
    g.fillStyle = css("--soft"); g.textAlign = "right"; g.fillText(ms(high), LEFT - 6, begin + 4); g.fillText("0", LEFT - 6, tall - 16);
    g.textAlign = "left"; g.fillText("step " + R.steps[0], LEFT, tall - 6); g.textAlign = "right"; g.fillText(String(lastStep), width - RIGHT, tall - 6);
  }
  function history() {
    const tall = 190, begin = 26, [g, width] = surface($("run-history"), tall), y = v => tall - 16 - (tall - 16 - begin) * Math.min(v / top, 1), w = Math.max((width - LEFT - RIGHT) / n, .6);
    axes(g, width, tall, top, begin);
    for (let i = 0; i < n; i++) {
      g.fillStyle = css("--idle"); if (R.counts[i] > 1) g.fillRect(x(i, width), y(R.most_ms[i]), w, y(R.least_ms[i]) - y(R.most_ms[i]) + 1);
      g.fillStyle = R.most_ms[i] > top ? css("--red") : css("--accent"); g.fillRect(x(i, width), y(R.middle_ms[i]) - 1, Math.max(w, 1.5), 2.5);
    }
    g.textAlign = "center";
    for (const [i, found] of marks) { const kinds = new Set(found.map(k => k.kind)); let at = 0;
      for (const kind of Object.keys(SIGNS)) if (kinds.has(kind)) { g.fillStyle = kind === "finding" ? css("--red") : css("--soft"); g.fillText(SIGNS[kind], x(i, width) + w / 2, 8 + 9 * at++); } }
  }
  const phaseTop = Math.max(1e-3, ...R.steps.map((_, i) => Math.min(top, R.phases.reduce((s, p) => s + p.own_ms[i], 0))));
  function phases() {
    const tall = 170, [g, width] = surface($("run-phases"), tall), w = Math.max((width - LEFT - RIGHT) / n, .6) + .3, unit = (tall - 26) / phaseTop;
    axes(g, width, tall, phaseTop, 8);
    g.save(); g.beginPath(); g.rect(LEFT, 8, width, tall - 24); g.clip();
    for (let i = 0; i < n; i++) { let y = tall - 16; for (const p of R.phases) { const h = p.own_ms[i] * unit; g.fillStyle = ui.color(p.name); g.fillRect(x(i, width), y - h, w, h + .2); y -= h; } }
    g.restore();
  }
  const told = i => [`${named(i)}: ${ms(R.middle_ms[i])}${R.counts[i] > 1 ? `, ${ms(R.least_ms[i])} to ${ms(R.most_ms[i])}` : ""}`, ...R.phases.filter(p => p.own_ms[i] > 0).map(p => `${p.name} ${ms(p.own_ms[i])}`), ...(marks.get(i) || []).map(k => `${SIGNS[k.kind]} ${k.text}`)].join("\n");
  for (const id of ["run-history", "run-phases"]) {
    $(id).addEventListener("mousemove", e => { const area = $(id).getBoundingClientRect(), i = Math.floor((e.clientX - area.left - LEFT) / (area.width - LEFT - RIGHT) * n); i >= 0 && i < n ? ui.showTip(e, told(i)) : ui.hideTip(); });
    $(id).addEventListener("mouseleave", ui.hideTip);
  }

  // ---- rank by step
  const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
  let heat = null;
  function pickHeat() { const found = R.heat.find(h => h.worker === $("heat-worker").value); heat = found ? {...found, data: bytes(found.cells)} : null; drawHeat(); }
  const hue = v => { const f = (v - 1) / 100, t = Math.max(-1, Math.min(1, (f - 1) / .5)); return t >= 0 ? [255, Math.round(244 - 170 * t), Math.round(236 - 190 * t)] : [Math.round(236 + 150 * t), Math.round(244 + 90 * t), 255]; };
  function drawHeat() {
    const canvas = $("run-heat"); if (!heat) { canvas.hidden = true; return; }
    const rows = heat.ranks.length, columns = heat.steps.length, tall = Math.max(60, Math.min(420, rows * (rows <= 32 ? 14 : rows <= 128 ? 5 : 2))) + 18, [g, width] = surface(canvas, tall);
    const image = new ImageData(columns, rows);
    for (let i = 0; i < rows * columns; i++) { const v = heat.data[i], [r, gg, b] = v ? hue(v) : [0, 0, 0]; image.data.set([r, gg, b, v ? 255 : 0], i * 4); }
    const small = document.createElement("canvas"); small.width = columns; small.height = rows; small.getContext("2d").putImageData(image, 0, 0);
    g.imageSmoothingEnabled = false; g.drawImage(small, LEFT, 2, width - LEFT - RIGHT, tall - 20);
    g.fillStyle = css("--soft"); g.textAlign = "right"; const every = Math.ceil(rows / ((tall - 20) / 13));
    heat.ranks.forEach((rank, i) => { if (i % every === 0) g.fillText(String(rank), LEFT - 6, 2 + (i + .5) * (tall - 20) / rows); });
    g.textAlign = "left"; g.fillText("step " + heat.steps[0], LEFT, tall - 8); g.textAlign = "right"; g.fillText(String(lastStep), width - RIGHT, tall - 8);
  }
  $("run-heat").addEventListener("mousemove", e => { if (!heat) return; const a = $("run-heat").getBoundingClientRect(), c = Math.floor((e.clientX - a.left - LEFT) / (a.width - LEFT - RIGHT) * heat.steps.length), r = Math.floor((e.clientY - a.top - 2) / (a.height - 20) * heat.ranks.length);
    if (c < 0 || r < 0 || c >= heat.steps.length || r >= heat.ranks.length) return ui.hideTip();
    const v = heat.data[r * heat.steps.length + c], more = heat.ranks.length < heat.count ? " and the next ones: the farthest out" : "";
    ui.showTip(e, `${heat.worker} ${heat.ranks[r]}${more}, step ${heat.steps[c]}\n${v ? ((v - 1) / 100).toFixed(2) + " times its peers" : "nothing told"}`); });
  $("run-heat").addEventListener("mouseleave", ui.hideTip);
  R.heat.forEach(h => $("heat-worker").append(new Option(h.worker, h.worker)));
  $("heat-worker").addEventListener("change", pickHeat);
  if (R.heat.length) $("heat-note").textContent = "Time in phases that wait for nobody against the median of the ranks: blue less, red more, 1.5 times at its strongest. Where a cell stands for several ranks or steps, the one that is farthest out shows."; else { $("heat-note").textContent = "No two ranks of a worker told their steps."; $("heat-worker").parentElement.hidden = true; }

  ui.legend($("run-legend"), R.phases.map(p => [p.name, ui.color(p.name)]));
  if (R.tail) $("run-tail").textContent = `The last 5 % of ${R.tail.of} cost ${ui.pct(R.tail.share)} of generation, mean of ${ui.counted(R.tail.steps.length, "step")}.`;
  ui.table($("run-marks"), "Marks", [{name: "step", num: true, value: r => r.step}, {name: "what", value: r => r.kind}, {name: "", value: r => r.text, cls: "wide"}], R.marks, {limit: 6});
  const draw = () => { history(); phases(); drawHeat(); };
  pickHeat(); draw(); addEventListener("resize", draw);
  return {curves};
}
