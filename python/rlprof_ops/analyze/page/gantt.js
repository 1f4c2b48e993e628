"use strict";
// The Gantt chart of phases by rank: a canvas of rows that scrolls, under an axis that stays in view.
function makeGantt(D, ui) {
  const {$, el, time, color, rankName} = ui;
  const canvas = $("gantt-canvas"), axis = $("gantt-axis"), box = $("gantt-box");
  const stepSelect = $("gantt-step"), workerSelect = $("gantt-worker");
  const AXIS = 40, RIGHT = 8;
  const label = () => (innerWidth < 760 ? 96 : 190);
  const workers = D.workers.map(w => w.worker);
  const order = D.ranks.map((_, i) => i).sort((a, b) =>
    workers.indexOf(D.ranks[a].worker) - workers.indexOf(D.ranks[b].worker) || D.ranks[a].rank - D.ranks[b].rank || a - b);
  const group = (rows, key) => rows.reduce((m, r) => (m.has(key(r)) ? m.get(key(r)).push(r) : m.set(key(r), [r]), m), new Map());
  const segments = group(D.segments, s => s[0]), steps = group(D.steps_of, s => s[0]);
  const slow = group(D.stragglers.flatMap(s => s.ranks.map(rank => ({...s, rank}))), s => s.rank);
  const path = group(D.critical_path.steps.flatMap(c => c.stretches.map(([r, a, n]) => [r, c.step, a / 1000, n / 1000])), s => s[0]);
  const longest = group(D.kernel_spans.spans, k => k[0]), KERNEL_PX = 3; // drawn from that width on
  let view = [0, 1], rows = [], height = 18, selected = null;

  const inStep = s => stepSelect.value === "" || s === +stepSelect.value;
  const shown = () => order.filter(i => !workerSelect.value || D.ranks[i].worker === workerSelect.value);
  const rowHeight = n => (n <= 32 ? 20 : n <= 128 ? 12 : n <= 260 ? 7 : n <= 1500 ? 5 : 3);

  function whole() {
    const parts = D.steps_of.filter(s => inStep(s[1]));
    return parts.length ? [Math.min(...parts.map(s => s[2])), Math.max(...parts.map(s => s[2] + s[3]))] : [0, 1];
  }
  function reset() { view = whole(); }
  function niceStep(span, most) {
    const raw = span / most, p = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map(m => m * p).find(v => v >= raw);
  }
  function surface(target, width, tall) {
    const ratio = devicePixelRatio || 1, g = target.getContext("2d");
    target.style.height = tall + "px"; target.width = width * ratio; target.height = tall * ratio;
    g.scale(ratio, ratio); g.font = "11px system-ui,sans-serif"; g.textBaseline = "middle";
    return g;
  }
  function palette() {
    const css = getComputedStyle(document.documentElement), of = name => css.getPropertyValue(name).trim();
    return {soft: of("--soft"), line: of("--line"), ink: of("--ink"), idle: of("--idle"), red: of("--red"), accent: of("--accent"), bg: of("--bg")};
  }

  function drawAxis(width, x, c) {
    const g = surface(axis, width, AXIS);
    g.fillStyle = c.bg; g.fillRect(0, 0, width, AXIS);
    const ticks = Math.max(2, Math.min(8, Math.floor((width - label()) / 84))), tick = niceStep(view[1] - view[0], ticks);
    g.textAlign = "center"; g.fillStyle = c.soft;
    const first = Math.ceil(view[0] / tick) * tick, marks = [];
    for (let t = first; t <= view[1]; t += tick) if (x(t) < width - 20) marks.push(t);
    // three digits no longer tell neighbours apart: the others are said from the first on
    const close = new Set(marks.map(t => time(t * 1000))).size < marks.length;
    for (const t of marks) g.fillText(close && t > first ? "+" + time((t - first) * 1000) : time(t * 1000), x(t), 29);
    g.save(); g.beginPath(); g.rect(label(), 0, width - label(), AXIS); g.clip();
    let free = -1;
    for (const s of D.steps) if (inStep(s.step)) {
      const a = Math.max(x(s.start_ns / 1000), label()), b = Math.min(x((s.start_ns + s.duration_ns) / 1000), width - RIGHT);
      if (b <= a) continue;
      g.fillStyle = c.ink; g.fillRect(a, 4, 1, 14);
      const name = D.step_names[s.step], texts = ["step " + name, name], room = b - a;
      const text = texts.find(t => g.measureText(t).width + 8 <= room);
      if (text && a + 4 > free) { g.textAlign = "left"; g.fillText(text, a + 4, 11); free = a + 4 + g.measureText(text).width; }
    }
    g.restore();
    g.fillStyle = c.line; g.fillRect(0, AXIS - 1, width, 1);
    const top = rows[Math.min(Math.floor(box.scrollTop / height), rows.length - 1)]; // whose rows are in view
    if (box.scrollTop > height && top !== undefined) { g.fillStyle = c.ink; g.textAlign = "left"; g.fillText(fitted(g, D.ranks[top].worker, "", 14), 8, 29); }
  }
  function fitted(g, name, number, margin) {
    const fits = () => g.measureText(name + number).width <= label() - margin;
    while (name.length > 2 && !fits()) name = name.replace(/…$/, "").slice(0, -1) + "…";
    return name + number;
  }

  function drawName(g, i, n, last, c) {
    const r = D.ranks[i], y = n * height, first = r.worker !== last, bad = slow.has(i);
    const every = Math.max(1, Math.ceil(12 / height)), numbered = height >= 11 || r.rank % every === 0 || bad;
    if (bad) { g.fillStyle = c.red; g.fillRect(0, y, 4, height); }
    g.fillStyle = bad ? c.red : i === selected ? c.accent : first ? c.ink : c.soft;
    const number = numbered ? " " + r.rank : "";
    if (!first && height < 11 && !numbered) return;
    g.textAlign = "left";
    if (height >= 11 || first) {
      g.fillText(fitted(g, r.worker, number, 14), 8, y + height / 2 + (height < 11 ? 3 : 0));
    } else if (n * height - drawName.at >= 12) { g.textAlign = "right"; g.fillText(String(r.rank), label() - 8, y + height / 2); }
    else return;
    drawName.at = n * height;
  }

  const scaled = width => (width - label() - RIGHT) / Math.max(view[1] - view[0], 1e-3);
  const placed = width => { const scale = scaled(width); return t => label() + (t - view[0]) * scale; };
  function draw() {
    if (!D.steps_of.length) return;
    const c = palette(), width = box.clientWidth, left = label(), scale = scaled(width), x = placed(width);
    rows = shown(); height = rowHeight(rows.length);
    const tall = rows.length * height + 4;
    drawAxis(width, x, c);
    const g = surface(canvas, width, tall), gap = height > 8 ? 2 : height > 4 ? 1 : 0;
    drawName.at = -99;
    let last = null;
    rows.forEach((i, n) => {
      const y = n * height;
      if (i === selected) { g.globalAlpha = .18; g.fillStyle = c.accent; g.fillRect(0, y, width, height); g.globalAlpha = 1; }
      drawName(g, i, n, last, c);
      if (D.ranks[i].worker !== last && n) { g.fillStyle = c.soft; g.fillRect(0, y - .5, width, 1); }
      last = D.ranks[i].worker;
      g.save(); g.beginPath(); g.rect(left, y, width - left, height); g.clip();
      // in no phase: a thin bar, so that it is told from a phase without its colour
      const thin = Math.max(1.5, height * .22);
      for (const s of steps.get(i) || []) if (inStep(s[1])) { g.fillStyle = c.idle; g.fillRect(x(s[2]), y + (height - thin) / 2, s[3] * scale, thin); }
      const mine = (slow.get(i) || []).map(s => s.phase);
      for (const s of segments.get(i) || []) if (inStep(s[1])) {
        const a = x(s[3]), w = Math.max(s[4] * scale, 1);
        if (a + w < left || a > width) continue;
        g.fillStyle = color(s[2]); g.fillRect(a, y + gap, w, height - 2 * gap);
        if (mine.includes(D.phase_names[s[2]])) { g.strokeStyle = c.ink; g.lineWidth = 2; g.strokeRect(a + 1, y + gap + .5, Math.max(w - 2, 1), height - 2 * gap - 1); }
      }
      if (height >= 11) { // the longest kernels of the rank, where there is room for them
        g.fillStyle = c.ink; g.globalAlpha = .62;
        for (const k of longest.get(i) || []) { const a = x(k[2] / 1000), w = k[3] / 1000 * scale; if (w >= KERNEL_PX && a < width && a + w > left) g.fillRect(a, y + height * .52, w - 1, height * .3); }
        g.globalAlpha = 1;
      }
      g.fillStyle = c.ink;
      for (const s of path.get(i) || []) if (inStep(s[1])) { const tall = Math.max(2, height * .2); g.fillRect(x(s[2]), y + height - tall, Math.max(s[3] * scale, 1), tall); }
      g.restore();
    });
    g.save(); g.beginPath(); g.rect(left, 0, width - left, tall); g.clip(); g.fillStyle = c.ink;
    for (const s of D.steps) if (inStep(s.step)) { g.globalAlpha = .55; g.fillRect(x(s.start_ns / 1000), 0, 1, tall); }
    g.restore();
    if (ui.drawn) ui.drawn(view, left, RIGHT);
  }

  // ---- what is under the pointer
  function at(e) {
    const area = canvas.getBoundingClientRect(), n = Math.floor((e.clientY - area.top) / height), px = e.clientX - area.left;
    if (n < 0 || n >= rows.length) return null;
    return {rank: rows[n], t: view[0] + (px - label()) / (area.width - label() - RIGHT) * (view[1] - view[0]), inside: px >= label()};
  }
  function describe(hit) {
    const r = D.ranks[hit.rank], named = (slow.get(hit.rank) || []).map(s => `\n${s.node === null ? "straggler" : "node slow"} in ${s.phase}: ${time(s.excess_ns)} a step`).join("");
    const where = `${r.worker} ${r.rank}${r.host ? " on " + r.host : ""}`;
    if (!hit.inside) return where + named;
    const kernel = height >= 11 ? kernelAt(hit) : undefined;
    if (kernel) return `${D.kernel_spans.names[kernel[1]]}: ${time(kernel[3])}\n${where}, one of the ${D.kernel_spans.a_report} longest kernels of its report`;
    const slack = (view[1] - view[0]) / 1000, near = s => hit.t >= s[3] - slack && hit.t <= s[3] + s[4] + slack;
    const seg = (segments.get(hit.rank) || []).filter(s => inStep(s[1])).find(near);
    const step = (steps.get(hit.rank) || []).find(s => inStep(s[1]) && hit.t >= s[2] && hit.t <= s[2] + s[3]);
    if (seg) return `${step && step[4] ? "mostly " : ""}${D.phase_names[seg[2]]}: ${time(seg[4] * 1000)}\n${where}, step ${D.step_names[seg[1]]}${named}`;
    return step ? `in no phase\n${where}, step ${D.step_names[step[1]]} of ${time(step[3] * 1000)}` : where;
  }

  function kernelAt(hit) {
    const scale = scaled(box.clientWidth);
    return (longest.get(hit.rank) || []).find(k => k[3] / 1000 * scale >= KERNEL_PX && hit.t >= k[2] / 1000 && hit.t <= (k[2] + k[3]) / 1000);
  }
  /** Zooms to the longest piece of work of that name on some rank of a worker; says whether there is one. */
  function toKernel(worker, name) {
    let best = null;
    for (const k of D.kernel_spans.spans) if (D.kernel_spans.names[k[1]] === name && D.ranks[k[0]].worker === worker && (!best || k[3] > best[3])) best = k;
    if (!best) return false;
    stepSelect.value = ""; reveal(best[0]); show((best[2] - 2 * best[3]) / 1000, (best[2] + 3 * best[3]) / 1000);
    return true;
  }

  // ---- zoom and move; never far outside of what there is
  function show(a, b) {
    const all = whole(), span = Math.min(Math.max(b - a, 1), (all[1] - all[0]) * 1.1), slack = span * .5;
    const begin = Math.min(Math.max(a, all[0] - slack), all[1] + slack - span);
    view = [begin, begin + span]; draw();
  }
  const zoom = (k, t = (view[0] + view[1]) / 2) => show(t - (t - view[0]) * k, t + (view[1] - t) * k);
  const move = part => { const by = (view[1] - view[0]) * part; show(view[0] + by, view[1] + by); };
  let drag = null;
  canvas.addEventListener("mousemove", e => {
    if (drag && Math.abs(drag.x - e.clientX) > 3) {
      const by = (drag.x - e.clientX) / (canvas.clientWidth - label() - RIGHT) * (drag.view[1] - drag.view[0]);
      drag.moved = true; show(drag.view[0] + by, drag.view[1] + by); return ui.hideTip();
    }
    const hit = at(e);
    hit ? ui.showTip(e, describe(hit)) : ui.hideTip();
  });
  canvas.addEventListener("mouseleave", ui.hideTip);
  canvas.addEventListener("mousedown", e => { drag = {x: e.clientX, view: [...view], moved: false}; });
  addEventListener("mouseup", e => {
    if (drag && !drag.moved && e.target === canvas) { const hit = at(e); if (hit) select(hit.rank); }
    drag = null;
  });
  for (const target of [canvas, axis]) target.addEventListener("wheel", e => {
    if (!e.ctrlKey && !e.metaKey && !e.shiftKey) return; // a bare wheel scrolls
    e.preventDefault();
    const area = target.getBoundingClientRect(), t = view[0] + (e.clientX - area.left - label()) / (area.width - label() - RIGHT) * (view[1] - view[0]);
    zoom((e.deltaY || e.deltaX) > 0 ? 1.25 : .8, t);
  }, {passive: false});
  canvas.addEventListener("dblclick", () => { reset(); draw(); });
  canvas.addEventListener("keydown", e => {
    const keys = {"+": () => zoom(.8), "=": () => zoom(.8), "-": () => zoom(1.25), "0": () => { reset(); draw(); }, Home: () => { reset(); draw(); },
      ArrowLeft: () => move(-.1), ArrowRight: () => move(.1), ArrowUp: () => pick(-1), ArrowDown: () => pick(1)};
    if (!keys[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault(); keys[e.key]();
  });
  function pick(by) {
    const now = rows.indexOf(selected), next = rows[Math.min(Math.max(now < 0 ? 0 : now + by, 0), rows.length - 1)];
    select(next); scrollTo(next);
  }

  // ---- one rank, one step: by click, by a finding, by the address
  function scrollTo(rank) {
    const n = rows.indexOf(rank);
    if (n >= 0) box.scrollTop = n * height + AXIS - box.clientHeight / 2;
  }
  function select(rank) { selected = rank; draw(); write(); }
  function write() {
    const parts = [];
    if (stepSelect.value) parts.push("step=" + stepSelect.value);
    const mine = D.ranks[selected];
    if (mine) parts.push("rank=" + mine.rank, "worker=" + encodeURIComponent(mine.worker));
    if (mine && D.ranks.filter(r => r.worker === mine.worker && r.rank === mine.rank).length > 1) parts.push("host=" + encodeURIComponent(mine.host), "pid=" + mine.pid);
    try { history.replaceState(null, "", parts.length ? "#" + parts.join("&") : location.pathname + location.search); } catch { /* a sandboxed frame */ }
  }
  function reveal(rank, step) {
    if (workerSelect.value && D.ranks[rank].worker !== workerSelect.value) workerSelect.value = "";
    if (step !== undefined) { stepSelect.value = String(step); reset(); }
    selected = rank; draw(); scrollTo(rank);
    $("gantt").scrollIntoView({block: "start"}); canvas.focus({preventScroll: true}); write();
  }
  /** Follows "#step=5&rank=3" (or with &worker=…, &host=… and &pid=…); says whether there was one. */
  function follow(hash) {
    const asked = new URLSearchParams(hash.replace(/^#/, "")), step = asked.get("step");
    if (!asked.has("step") && !asked.has("rank")) return false;
    const known = [...stepSelect.options].some(o => o.value === step);
    const rank = asked.has("rank") ? order.find(i => ["rank", "worker", "host", "pid"].every(key => !asked.get(key) || String(D.ranks[i][key]) === asked.get(key))) : undefined;
    if (known) { stepSelect.value = step; reset(); }
    if (rank !== undefined) reveal(rank); else { draw(); $("gantt").scrollIntoView({block: "start"}); }
    return true;
  }

  stepSelect.append(new Option("all", ""));
  D.steps.forEach(s => stepSelect.append(new Option(D.step_names[s.step], String(s.step))));
  workerSelect.append(new Option("all workers", ""));
  workers.forEach(w => workerSelect.append(new Option(w, w)));
  stepSelect.addEventListener("change", () => { reset(); draw(); write(); });
  workerSelect.addEventListener("change", draw);
  addEventListener("resize", draw);
  box.addEventListener("scroll", () => drawAxis(box.clientWidth, placed(box.clientWidth), palette()), {passive: true});
  $("gantt-in").addEventListener("click", () => zoom(.6));
  $("gantt-out").addEventListener("click", () => zoom(1.6));
  $("gantt-all").addEventListener("click", () => { reset(); draw(); });
  reset();
  return {draw, reveal, follow, toKernel, firstOf: worker => order.find(i => D.ranks[i].worker === worker), view: () => view, rowOf: () => rows.indexOf(selected) * height};
}
