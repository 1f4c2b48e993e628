"use strict";
(() => {
const D = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const el = (tag, cls, text) => { const e = document.createElement(tag); if (cls) e.className = cls; if (text !== undefined) e.textContent = text; return e; };
// durations and sizes as rlprof_ops.words has them
const time = ns => { if (ns === null || ns === undefined) return "–"; const a = Math.abs(ns);
  for (const [u, s, least] of [["d", 8.64e13, 3.6e14], ["h", 3.6e12, 6e12], ["min", 6e10, 1e12], ["s", 1e9, 1e9], ["ms", 1e6, 1e6], ["µs", 1e3, 1e3]]) if (a >= least * .9995) { const v = ns / s; return v.toFixed(Math.abs(v) >= 99.95 ? 0 : Math.abs(v) >= 9.995 ? 1 : 2) + " " + u; }
  return Math.round(ns) + " ns"; };
// a number and its unit stay on one line
const unbroken = text => text.replace(/(\d) (?=(?:%|ns|µs|ms|s|min|h|d)(?![\w]))/g, "$1\u00a0");
const pct = x => (x * 100).toFixed(x >= .0995 ? 0 : 1) + " %";
const size = b => { if (b === null || b === undefined || b < 0) return "–"; for (const [u, s] of [["TiB", 2**40], ["GiB", 2**30], ["MiB", 2**20], ["KiB", 2**10]]) if (b >= s) return (b / s).toFixed(b / s < 99.95 ? 1 : 0) + " " + u; return Math.round(b) + " B"; };
const counted = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const count = n => n.toLocaleString("en");
const rankName = i => i === null || i === undefined ? "–" : D.ranks[i].worker + " " + D.ranks[i].rank + pidOf(D.ranks[i]);
const pidOf = r => r.told_apart ? ` (pid ${r.pid})` : "";

// Okabe-Ito and neighbours: told apart by most eyes, on white and on black
const FIXED = {generation: "#3b82c4", reward: "#8e6bbf", ref_logprob: "#4fa8a0", logprob: "#6fbf73", values: "#9aa83a", advantage: "#d6b02c", train: "#e08a3c", critic_train: "#c96f4a", weight_sync: "#cc5f8f", checkpoint: "#8a7a68", validation: "#5f7d95"};
const SPARE = ["#7a8fd6", "#b07aa1", "#59a14f", "#c7843e", "#499894", "#d37295", "#86754e", "#5778a4", "#a87c9f", "#6a9f58"];
const color = i => FIXED[D.phase_names[i]] || SPARE[i % SPARE.length];
const GPU = [["compute", "compute_ns", "#3b82c4"], ["exposed communication", "exposed_communication_ns", "#cc5f8f"], ["exposed memcpy", "exposed_memcpy_ns", "#d6b02c"]];
// kinds of idle time differ in pattern, not in colour: a fill that begins with a dot is a class of page.css
const IDLE = [["idle: host had not launched", "host_ns", ".idle-host"], ["idle: host in a synchronise call", "synchronising_ns", ".idle-sync"], ["idle: waiting for another role", "waiting_ns", ".idle-wait"], ["idle: work was queued", "queued_ns", ".idle-queue"]];
const paint = (node, fill) => { if (fill[0] === ".") node.classList.add(fill.slice(1)); else node.style.background = fill; };

// ---- tooltip
const tip = $("tip");
const showTip = (e, text) => { tip.textContent = text; tip.hidden = false;
  const w = tip.offsetWidth, h = tip.offsetHeight;
  tip.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - w - 8)) + "px"; tip.style.top = (e.clientY + 16 + h > innerHeight ? e.clientY - h - 8 : e.clientY + 16) + "px"; };
const hideTip = () => { tip.hidden = true; };
const hover = (node, text) => { node.addEventListener("mousemove", e => showTip(e, text)); node.addEventListener("mouseleave", hideTip); };

// ---- tables: sortable, searchable, a page at a time
function table(box, title, columns, rows, options = {}) {
  box.textContent = "";
  if (!rows.length) { if (options.empty) box.append(el("p", "empty", options.empty)); return; }
  const head = el("div", "tablehead"), left = el("div"); left.append(el("b", "", title + " ")); const note = el("span"); left.append(note); head.append(left);
  let query = "", sort = options.sort ?? null, down = options.down ?? true, limit = options.limit ?? 25;
  if (rows.length > 8) { const search = el("input"); search.type = "search"; search.placeholder = "filter"; search.setAttribute("aria-label", "Filter " + title);
    search.addEventListener("input", () => { query = search.value.toLowerCase(); draw(); }); head.append(search); }
  const scroll = el("div", "scroll"), t = el("table"), thead = el("thead"), tr = el("tr"), body = el("tbody");
  columns.forEach((c, i) => { const th = el("th", c.num ? "num" : "", c.name); th.tabIndex = 0; if (c.title) th.title = c.title;
    const go = () => { if (sort === i) down = !down; else { sort = i; down = !!c.num; } draw(); };
    th.addEventListener("click", go); th.addEventListener("keydown", e => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); go(); } }); tr.append(th); });
  const csv = el("button", "csv", "CSV"); csv.type = "button"; csv.title = "Save all rows as a CSV file"; csv.addEventListener("click", () => save(title, columns, rows)); head.append(csv);
  thead.append(tr); t.append(thead, body); scroll.append(t);
  const more = el("button", "more"); more.type = "button"; more.addEventListener("click", () => { limit = limit === Infinity ? 25 : Infinity; draw(); });
  box.append(head, scroll, more);
  const texts = rows.map(r => columns.map(c => String(c.text ? c.text(r) : c.value(r) ?? "")).join(" ").toLowerCase());
  const peaks = columns.map(c => c.bar ? Math.max(...rows.map(c.value)) || 1 : 1);
  function draw() {
    let index = rows.map((_, i) => i).filter(i => !query || texts[i].includes(query));
    if (sort !== null) { const v = columns[sort].value, sign = down ? -1 : 1;
      index.sort((a, b) => { const x = v(rows[a]), y = v(rows[b]); if (x === y) return a - b; if (x === null || x === undefined) return 1; if (y === null || y === undefined) return -1; return (x < y ? -1 : 1) * sign; }); }
    [...tr.children].forEach((th, i) => i === sort ? th.setAttribute("aria-sort", down ? "descending" : "ascending") : th.removeAttribute("aria-sort"));
    note.textContent = query ? `${index.length} of ${rows.length}` : `${rows.length}`;
    body.textContent = "";
    for (const i of index.slice(0, limit)) { const row = el("tr");
      columns.forEach((c, k) => { const td = el("td", (c.num ? "num " : "") + (c.cls || "")), text = String(c.text ? c.text(rows[i]) : c.value(rows[i]) ?? "–");
        if (c.bar) { const cell = el("span", "cell", text), b = el("i"); b.style.width = 100 * Math.max(0, c.value(rows[i])) / peaks[k] + "%"; cell.append(b); td.append(cell); } else if (c.go && c.go(rows[i])) { const b = el("button", "goto", text); b.type = "button"; b.title = "Zoom the chart to it"; b.addEventListener("click", c.go(rows[i])); td.append(b); } else td.textContent = text;
        if (c.cls === "wide") td.title = text; if (c.mark && c.mark(rows[i])) td.classList.add("red"); row.append(td); });
      body.append(row); }
    more.hidden = index.length <= Math.min(25, limit) && limit !== Infinity; more.textContent = limit === Infinity ? "show fewer" : `show all ${index.length}`;
  }
  draw();
}
// numbers as they are (nanoseconds, bytes, shares), text as it is shown
const csvCell = v => { const s = v === null || v === undefined ? "" : String(v); return /^[=+@\t\r-]/.test(s) && typeof v !== "number" ? `"'${s.replace(/"/g, '""')}"` : /[",\n\r]/.test(s) ? `"${s.replace(/"/g, '""')}"` : s; };
const csvOf = (columns, rows) => [columns.map(c => csvCell(c.name + (c.unit ? ` (${c.unit})` : ""))), ...rows.map(r => columns.map(c => csvCell(c.num || !c.text ? c.value(r) : c.text(r))))].map(r => r.join(",")).join("\r\n") + "\r\n";
function save(title, columns, rows) { const a = el("a"); a.href = URL.createObjectURL(new Blob([csvOf(columns, rows)], {type: "text/csv"})); a.download = ["rlprof", D.run.job, title.toLowerCase().replace(/[^a-z0-9]+/g, "-")].filter(Boolean).join("-") + ".csv"; a.click(); setTimeout(() => URL.revokeObjectURL(a.href), 1000); }
const hide = id => { $(id).hidden = true; };
const ns = (name, key, extra) => ({name, num: true, unit: "ns", value: r => r[key], text: r => time(r[key]), ...extra});

// ---- head
const steps = D.steps.map(s => s.step), hosts = [...new Set(D.ranks.map(r => r.host).filter(Boolean))];
const stepRuns = list => { const out = []; for (const s of list) { const l = out[out.length - 1]; if (l && s === l[1] + 1) l[1] = s; else out.push([s, s]); } return out.map(([a, b]) => a === b ? a : a + ":" + (b + 1)).join(", "); };
const start = new Date(D.made_ns / 1e6);
$("meta").textContent = [`steps ${D.all_steps || "none"}`, D.ranks_read, hosts.length ? counted(hosts.length, "host") : "", start.toISOString().slice(0, 16).replace("T", " ") + " UTC"].filter(Boolean).join("  ·  ");
$("footer").textContent = `${D.made_by} · ${D.run.path} · the same numbers are in report.json`;
const themes = [null, "light", "dark"]; let theme = 0;
$("theme").addEventListener("click", () => { const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark"; if (gantt) gantt.draw(); if (requests) requests.draw(); });

// ---- findings and tiles
D.findings.forEach((f, i) => { const item = el("li", f.kind + (i > 2 ? " small" : "")), at = () => f.rank ?? (f.worker && gantt ? gantt.firstOf(f.worker) : undefined);
  if (f.rank !== null || f.worker) { const b = el("button", "goto", unbroken(f.text)); b.type = "button"; b.title = "Show it in the chart"; b.addEventListener("click", () => { const rank = at(); if (gantt && rank !== undefined) gantt.reveal(rank, f.step ?? undefined); }); item.append(b); } else item.append(unbroken(f.text));
  if (f.saves_ns) item.append(el("small", "advice", `Mended, a step is ${time(f.saves_ns)} shorter. `));
  if (f.advice && i < 3) item.append(el("small", "advice", f.advice));
  else if (f.advice) { const d = el("details", "advice"); d.append(el("summary", "", "what to try"), f.advice); item.append(d); }
  $("findings-list").append(item); });
if (!D.findings.length) $("findings-list").append(el("li", "", "Nothing is large enough for a sentence."));
const tile = (value, label, title) => { const t = el("div", "tile"); t.append(el("b", "", value), el("span", "", label)); if (title) t.title = title; $("tiles").append(t); };
const mean = a => a.length ? a.reduce((x, y) => x + y, 0) / a.length : 0;
const stepCount = D.steps.reduce((n, s) => n + (s.count || 1), 0), unknown = D.steps.some(s => s.count === null);
if (D.steps.length) tile(time(D.steps.reduce((n, s) => n + s.duration_ns, 0) / stepCount), unknown ? "a window without step marks" : stepCount > 1 ? `a step, mean of ${stepCount}` : "the captured step", "First rank's start to last rank's end");
D.unmarked.forEach(text => $("unmarked").append(el("p", "warn", text)));
const gpuWindow = D.gpu.reduce((s, g) => s + g.window_ns, 0);
if (gpuWindow) { tile(pct(D.gpu.reduce((s, g) => s + g.busy_ns, 0) / gpuWindow), "GPUs busy", "Union of all GPU work over the windows, all ranks"); tile(pct(D.gpu.reduce((s, g) => s + g.exposed_communication_ns, 0) / gpuWindow), "communication exposed", "Communication that no compute hides"); }
const c = D.coverage;
tile(c.planned === null ? `${c.reports.length}` : `${c.arrived} of ${c.planned}`, c.planned === null ? (c.reports.length === 1 ? "report read" : "reports read") : "planned reports arrived", `${c.unread.length} could not be read`);
tile(String(D.stragglers.length), D.stragglers.length === 1 ? "straggler" : "stragglers");
tile(D.clocks.hosts.length < 2 ? "one host" : D.clocks.residual_ns === null ? "unknown" : time(D.clocks.residual_ns), "residual of the clocks");

// ---- the whole run and the Gantt chart
const legend = (box, items) => items.forEach(([name, fill]) => { const s = el("span"), i = el("i"); paint(i, fill); s.append(i, name); box.append(s); });
const run = makeWholeRun(D, {$, el, time, pct, count, counted, table, hide, legend, color: name => FIXED[name] || SPARE[[...name].reduce((n, c) => n + c.charCodeAt(0), 0) % SPARE.length], showTip, hideTip});
const gantt = D.steps_of.length ? makeGantt(D, {$, el, time, color, rankName, showTip, hideTip, drawn: run.curves}) : null;
window.rlprofGantt = gantt;
if (gantt) { legend($("gantt-legend"), [...D.phase_names.map((p, i) => [p, color(i)]), ["in no phase", ".thin"], ...(D.critical_path.steps.length ? [["what decided the step", ".path"]] : []), ...(D.stragglers.length ? [["straggler", ".slow"]] : [])]); gantt.draw(); } else hide("gantt");

showHangs(D, {$, el, hide, legend, hover});
showRollout(D, {$, el, time, pct, count, counted, table, ns, hide, legend, showTip, hideTip});
const requests = showRequests(D, {$, el, time, count, counted, legend, showTip, hideTip});

// ---- what decided the step: the chain, what a change would bring, slack
const chain = D.critical_path.steps.flatMap(s => s.links.map((l, i) => ({...l, step: s.step, length: s.length_ns, place: i + 1})));
if (chain.length) {
  table($("chain-table"), "The chain, step by step", [{name: "step", num: true, value: r => r.step, text: r => D.step_names[r.step]}, {name: "link", num: true, value: r => r.place}, {name: "phase", value: r => r.phase}, {name: "on", value: r => rankName(r.rank), text: r => rankName(r.rank) + (r.by_rank.length > 1 ? ` (${time(r.by_rank[0][1])}) and others` : "")}, ns("for", "duration_ns", {bar: true}), {name: "of the step", num: true, value: r => r.duration_ns / Math.max(r.length, 1), text: r => pct(r.duration_ns / Math.max(r.length, 1))}, ns("begun after", "after_ns", {title: "From the end of what it waited for: scheduling, transfers, work that no report shows"})], chain, {limit: 12});
  table($("what-if-table"), "What if", [{name: "change", value: r => r.change, cls: "wide"}, ns("a step shorter by", "saves_ns", {bar: true}), {name: "of the step", num: true, value: r => r.share, text: r => pct(r.share)}], D.what_if);
  table($("slack-table"), "Slack", [{name: "worker", value: r => r.worker}, {name: "phase", value: r => r.phase}, {name: "in the chain", num: true, value: r => r.on_path / r.steps, text: r => `${r.on_path} of ${r.steps} steps`}, ns("slack, tightest rank", "tightest_ns", {bar: true}), {name: "slack, median rank", num: true, unit: "ns", value: r => r.by_rank.map(x => x[1]).sort((a, b) => a - b)[r.by_rank.length >> 1], text: r => time(r.by_rank.map(x => x[1]).sort((a, b) => a - b)[r.by_rank.length >> 1])}], D.critical_path.slack);
} else if (D.critical_path.untold) $("chain-table").append(el("p", "warn", D.critical_path.untold)); else hide("causes");

// ---- anatomy
const barWidth = () => Math.max(80, document.querySelector("main").clientWidth - (innerWidth < 640 ? 200 : 380));
function bar(box, name, parts, total, whole, title) { const row = el("div", "row"), b = el("div", "bar"), n = el("div", "name"), [worker, rest] = name.match(/^(\S*)(.*)$/s).slice(1); n.append(el("span", "", worker), rest); n.title = title || name;
  parts.forEach(([label, length, fill, cls, dark]) => { if (length <= 0) return; const s = el("span", cls || ""); s.style.width = 100 * length / whole + "%"; paint(s, fill); if (dark) s.style.color = "inherit"; if (length / whole * barWidth() > label.length * 6.6 + 6) s.textContent = label; hover(s, `${label}: ${time(length)} (${pct(length / total)})`); b.append(s); });
  row.append(n, b, el("div", "sum", time(total))); box.append(row); }
if (D.workers.length) { const whole = Math.max(...D.workers.map(w => w.mean_ns), 1);
  D.workers.forEach(w => bar($("anatomy-bars"), `${w.worker} ×${w.ranks}`, [...w.phases.map(([p, l]) => [D.phase_names[p], l, color(p)]), ...w.waiting.map(([o, l]) => ["waiting for " + o, l, ".waits", "", true]), ["nobody in a phase", w.unexplained_ns, ".nobody", "", true], [w.phases.length ? "not captured" : "marks no phase", w.uncaptured_ns, ".unseen", "", true]], w.mean_ns, whole));
  table($("anatomy-table"), "Phases", [{name: "worker", value: r => r.worker}, {name: "phase", value: r => r.phase}, ns("mean a step", "mean_ns", {bar: true}), {name: "of the step", num: true, value: r => r.share_of_step, text: r => pct(r.share_of_step)}, ns("shortest", "min_ns"), ns("longest", "max_ns"), ns("in collectives", "communication_ns", {title: "Mean time in collectives that no compute hides", text: r => r.communication_ns ? time(r.communication_ns) : "–"}), {name: "max/mean", num: true, value: r => r.ranks > 1 ? r.imbalance : null, text: r => r.ranks > 1 ? r.imbalance.toFixed(2) : "–", title: "Slowest rank's own mean over the mean of all ranks; 1 is even"}, {name: "ranks", num: true, value: r => r.ranks}, {name: "steps", num: true, value: r => r.steps}], D.phases);
  if (D.mfu) { const m = D.mfu;
    $("mfu-text").textContent = [`MFU: N = ${count(m.met)} parameters that a token meets, of ${count(m.parameters)} (${m.model}); ${m.tokens_per_step ? `${count(m.tokens_per_step)} tokens a step (${m.tokens_from}). ` : ""}6 N FLOPs a token in training, 2 N where it passes forward only.`, ...m.untold.map(t => "Not told: " + t + ".")].join(" ");
    table($("mfu-table"), "Share of the GPUs' peak", [{name: "worker", value: r => r.worker}, {name: "phase", value: r => r.phase}, {name: "MFU", num: true, bar: true, value: r => r.share, text: r => pct(r.share)}, {name: "TFLOP/s a GPU", num: true, value: r => r.tflops, text: r => r.tflops.toPrecision(3)}, {name: "peak", num: true, value: r => r.peak_tflops}, {name: "FLOPs a token, of N", num: true, value: r => r.flops_a_token}, {name: "GPUs", num: true, value: r => r.gpus}, ns("mean a step", "mean_ns")], m.rows); }
} else hide("anatomy");

// ---- GPUs
if (D.gpu.length) { legend($("gpu-legend"), [...GPU.map(g => [g[0], g[2]]), ...IDLE.map(g => [g[0], g[2]])]); const box = $("gpu-bars"), many = D.gpu.length > 24; if (many) box.classList.add("dense", "tall");
  D.gpu.slice(0, 1024).forEach(g => bar(box, `${rankName(g.rank)}${D.gpu.filter(o => o.rank === g.rank && o.report === g.report).length > 1 ? " gpu " + g.device : ""}`, [...GPU.map(([n, k, f]) => [n, g[k], f]), ...IDLE.map(([n, k, f]) => [n, g.idle[k], f])], g.window_ns, g.window_ns, g.report));
  const share = (name, get, title) => ({name, num: true, title, value: r => get(r) / Math.max(r.window_ns, 1), text: r => pct(get(r) / Math.max(r.window_ns, 1))});
  table($("gpu-table"), "GPUs", [{name: "rank", value: r => rankName(r.rank)}, {name: "host", value: r => D.ranks[r.rank].host}, {name: "gpu", value: r => r.device, text: r => `${r.device} ${r.name}`}, ns("window", "window_ns"), share("compute", r => r.compute_ns), share("comm. exposed", r => r.exposed_communication_ns), share("comm. all", r => r.communication_ns), share("memcpy exposed", r => r.exposed_memcpy_ns), share("idle", r => r.idle_ns), share("idle: host", r => r.idle.host_ns), share("idle: sync", r => r.idle.synchronising_ns), {name: "kernels", num: true, value: r => r.kernels, text: r => count(r.kernels)}], D.gpu);
  if (D.shared_gpus.length) { const box = el("div"); $("gpu-table").after(box); table(box, "GPUs that several processes share, each once", [{name: "gpu", value: r => r.uuid}, {name: "host", value: r => r.host}, {name: "ranks", value: r => r.ranks.map(rankName).join(", "), cls: "wide"}, ns("window", "window_ns"), share("busy", r => r.busy_ns), share("idle", r => r.idle_ns)], D.shared_gpus); }
  const told = new Map(); D.counters.forEach(r => { const key = [r.worker, r.phase, r.kernel_class].join("\t"); (told.get(key) || told.set(key, {worker: r.worker, phase: r.kernel_class ? `kernels: ${r.kernel_class}` : r.phase || "whole step", gpus: r.gpus}).get(key))[r.metric] = r.share; });
  const metrics = [...new Set(D.counters.map(r => r.metric))];
  table($("counters-table"), "The GPUs' own counters, mean share of their peak", [{name: "worker", value: r => r.worker}, {name: "in", value: r => r.phase}, ...metrics.map(m => ({name: m, num: true, value: r => r[m], text: r => r[m] === undefined ? "–" : pct(r[m])})), {name: "GPUs", num: true, value: r => r.gpus}], [...told.values()]);
} else hide("gpu");

// ---- spread
const multi = D.phases.filter(p => p.ranks > 1);
if (multi.length) { const slow = new Set(D.stragglers.flatMap(s => s.ranks.map(r => r + " " + s.phase)));
  multi.forEach(p => { const row = el("div", "row"), name = el("div", "name", p.phase + " "); name.append(el("small", "", `${p.worker} ×${p.ranks}`)); const NS = "http://www.w3.org/2000/svg", svg = document.createElementNS(NS, "svg"); svg.setAttribute("viewBox", "0 0 1000 28"); svg.setAttribute("preserveAspectRatio", "none");
    const owns = p.by_rank.map(r => r[2]), hi = Math.max(...owns, 1) * 1.04, mk = (tag, a) => { const n = document.createElementNS(NS, tag); for (const k in a) n.setAttribute(k, a[k]); svg.append(n); return n; };
    mk("line", {x1: 0, x2: 1000, y1: 14, y2: 14, stroke: "var(--line)"}); const med = [...owns].sort((a, b) => a - b)[owns.length >> 1];
    mk("line", {x1: 1000 * med / hi, x2: 1000 * med / hi, y1: 3, y2: 25, stroke: "var(--soft)", "stroke-dasharray": "3 2"});
    p.by_rank.forEach(([rank, all, own]) => { const bad = slow.has(rank + " " + p.phase), d = mk("line", {x1: 1000 * own / hi, x2: 1000 * own / hi, y1: bad ? 4 : 7, y2: bad ? 24 : 21, stroke: bad ? "var(--red)" : color(D.phase_names.indexOf(p.phase)), "stroke-width": bad ? 7 : 5, "stroke-opacity": bad ? 1 : Math.max(.25, Math.min(.85, 12 / owns.length)), "vector-effect": "non-scaling-stroke"}); d.classList.add("dot"); d.addEventListener("click", () => gantt && gantt.reveal(rank)); hover(d, `${rankName(rank)}${D.ranks[rank].host ? " on " + D.ranks[rank].host : ""}${bad ? " – straggler" : ""}\nown ${time(own)}, all ${time(all)} a step`); });
    row.append(name, svg, el("div", "sum", `${time(Math.min(...owns))} – ${time(Math.max(...owns))}`)); $("spread-rows").append(row); });
  table($("stragglers-table"), "Stragglers", [{name: "rank", value: r => r.rank, text: r => r.node === null ? rankName(r.rank) : `node ${r.node}: ${counted(r.ranks.length, "rank")} of ${D.ranks[r.rank].worker}`, mark: () => true}, {name: "host", value: r => D.ranks[r.rank].host}, {name: "phase", value: r => r.phase}, ns("slower by, a step", "excess_ns", {bar: true}), {name: "of the phase", num: true, value: r => r.share_of_phase, text: r => pct(r.share_of_phase)}, ns("standard error", "noise_ns"), {name: "steps slower", num: true, value: r => r.steps_slower / r.steps, text: r => `${r.steps_slower} of ${r.steps}`}, ns("rank time lost, a step", "cost_ns", {title: "What it is slower by, times the number of other ranks that may wait for it"})], D.stragglers, {empty: "No node and no rank is slower than the others by more than noise explains."});
} else hide("spread");

// ---- bubbles
const groupedBubbles = [...D.bubbles.reduce((m, b) => { const k = b.worker + "\n" + b.because + "\n" + b.phase, g = m.get(k) || {...b, sum: 0, shares: 0, peak: 0}; g.sum += b.mean_ns; g.shares += b.share; g.peak = Math.max(g.peak, b.mean_ns); return m.set(k, g); }, new Map()).values()].map(g => ({...g, mean: g.sum / g.steps, part: g.shares / g.steps}));
if (groupedBubbles.length) table($("bubbles-table"), "Idle through another's phase", [{name: "idle worker", value: r => r.worker}, {name: "while", value: r => r.because}, {name: "is in", value: r => r.phase}, {name: "mean a step", num: true, value: r => r.mean, text: r => time(r.mean), bar: true}, {name: "of the step", num: true, value: r => r.part, text: r => pct(r.part)}, {name: "longest", num: true, value: r => r.peak, text: r => time(r.peak)}], groupedBubbles, {sort: 3});
if (D.pipeline.length) table($("pipeline-table"), "Pipeline stages, a step", [{name: "worker", value: r => r.worker}, {name: "phase", value: r => r.phase}, {name: "stage", num: true, title: "From 0; – where no report tells a rank's place", value: r => r.stage, text: r => r.stage === null ? "–" : r.stage}, {name: "ranks", num: true, value: r => r.ranks}, ns("phase takes", "window_ns"), ns("computes", "compute_ns", {bar: true}), ns("waits for a stage", "waiting_ns", {title: "Nothing ran on the GPU but transfers between stages"}), ns("idle", "idle_ns"), {name: "bubble", num: true, value: r => r.share, text: r => pct(r.share)}], D.pipeline);
if (!groupedBubbles.length && !D.pipeline.length) hide("bubbles");

// ---- kernels and operators
const known = new Set(D.kernel_spans.spans.map(k => D.ranks[k[0]].worker + "\t" + D.kernel_spans.names[k[1]]));
function names(rows, title) { table($("kernels-table"), title, [{name: "name", value: r => r.name, cls: "wide", go: r => gantt && known.has(r.worker + "\t" + r.name) ? () => gantt.toKernel(r.worker, r.name) : null}, {name: "worker", value: r => r.worker}, {name: "phase", value: r => r.phase, text: r => r.phase || "–"}, ns("total", "total_ns", {bar: true}), {name: "share", num: true, value: r => r.share, text: r => pct(r.share)}, {name: "calls", num: true, value: r => r.count, text: r => count(r.count)}, {name: "mean", num: true, value: r => r.total_ns / r.count, text: r => time(r.total_ns / r.count)}, ns("longest", "max_ns")], rows, {sort: 3, empty: "None in the reports."}); }
const tabs = [...document.querySelectorAll(".tab")], pick = what => { tabs.forEach(t => t.classList.toggle("on", t.dataset.tab === what)); names(D[what], what === "kernels" ? "Kernels" : "Operators"); };
tabs.forEach(t => t.addEventListener("click", () => pick(t.dataset.tab)));
if (D.kernel_classes.length) table($("classes-table"), "Kinds of GPU work", [{name: "kind", value: r => r.kernel_class}, {name: "worker", value: r => r.worker}, {name: "phase", value: r => r.phase, text: r => r.phase || "–"}, ns("total", "total_ns", {bar: true}), {name: "of the phase's GPU work", num: true, value: r => r.share, text: r => pct(r.share)}, {name: "calls", num: true, value: r => r.count, text: r => count(r.count)}], D.kernel_classes, {sort: 3, limit: 12});
if (D.copies.length) table($("copies-table"), "Copies by direction", [{name: "direction", value: r => r.direction}, {name: "worker", value: r => r.worker}, {name: "phase", value: r => r.phase, text: r => r.phase || "–"}, ns("total", "total_ns", {bar: true}), {name: "moved", num: true, unit: "bytes", value: r => r.size_bytes, text: r => size(r.size_bytes)}, {name: "GB/s", num: true, value: r => r.gb_per_s, text: r => r.gb_per_s === null ? "–" : r.gb_per_s.toFixed(1)}, {name: "copies", num: true, value: r => r.count, text: r => count(r.count)}], D.copies, {sort: 3, limit: 12});
const spread = (of, name) => [["median", "median_ns"], ["p90", "p90_ns"], ["p99", "p99_ns"], ["longest", "max_ns"]].map(([title, key]) => ({name: `${name} ${title}`.trim(), num: true, unit: "ns", value: r => r[of][key], text: r => time(r[of][key])}));
const phaseOf = {name: "phase", value: r => r.phase, text: r => r.phase || "–"}, calls = {name: "calls", num: true, value: r => r.count, text: r => count(r.count)};
const tera = r => r === null ? "–" : r.toPrecision(3);
table($("operators-table"), "FLOPs of operators, by shape", [{name: "operator", value: r => r.name}, {name: "inputs", value: r => r.inputs, text: r => `${r.inputs} ${r.dtype}`, title: "The two that are multiplied"}, {name: "worker", value: r => r.worker}, phaseOf, ns("GPU time", "total_ns", {bar: true, title: "Of what was launched inside of it"}), calls, {name: "TFLOP/s", num: true, value: r => r.tflops, text: r => tera(r.tflops), title: "FLOPs by the shapes over the GPU time"}, {name: "of peak", num: true, value: r => r.share, text: r => r.share === null ? "–" : pct(r.share), title: "Dense, of 16-bit floats, by the GPU's name"}, {name: "bound by", value: r => r.bound}, {name: "of roofline", num: true, value: r => r.roof_tflops && r.tflops / r.roof_tflops, text: r => r.roof_tflops ? pct(r.tflops / r.roof_tflops) : "–", title: "Of what the peak and the GPU's memory allow for so many FLOPs a byte"}, {name: "GB/s", num: true, value: r => r.gb_per_s, text: r => r.gb_per_s === null ? "–" : r.gb_per_s.toFixed(0), title: "Inputs and results, once each"}], D.operators, {sort: 4, limit: 12});
if (!D.launches.length && !D.kernel_durations.length) hide("launches");
table($("launches-table"), "Calls that launch work", [{name: "call", value: r => r.call}, {name: "worker", value: r => r.worker}, phaseOf, calls, {name: "total", num: true, unit: "ns", value: r => r.calls.total_ns, text: r => time(r.calls.total_ns), bar: true}, ...spread("calls", "call,").slice(0, 3), ...spread("delays", "delay,"), {name: "work, median", num: true, unit: "ns", value: r => r.work.median_ns, text: r => time(r.work.median_ns)}, {name: "work shorter than call", num: true, value: r => r.shorter / r.count, text: r => pct(r.shorter / r.count)}], D.launches, {sort: 4, limit: 12});
table($("queues-table"), "Launches waiting on a stream", [{name: "rank", value: r => rankName(r.rank)}, {name: "gpu", num: true, value: r => r.device}, {name: "stream", num: true, value: r => r.stream}, {name: "launches", num: true, value: r => r.launches, text: r => count(r.launches)}, ns("window", "window_ns"), {name: "queue, mean", num: true, value: r => r.mean, text: r => r.mean.toFixed(2)}, {name: "longest", num: true, value: r => r.longest, text: r => count(r.longest)}, {name: "empty", num: true, value: r => r.empty, text: r => pct(r.empty)}, {name: "full", num: true, value: r => r.full, text: r => pct(r.full)}], D.launch_queues, {sort: 3, limit: 12});
table($("durations-table"), "Durations by kernel", [{name: "name", value: r => r.name, cls: "wide"}, {name: "worker", value: r => r.worker}, phaseOf, calls, {name: "total", num: true, unit: "ns", value: r => r.durations.total_ns, text: r => time(r.durations.total_ns), bar: true}, {name: "shortest", num: true, unit: "ns", value: r => r.durations.min_ns, text: r => time(r.durations.min_ns)}, ...spread("durations", ""), {name: "standard deviation", num: true, unit: "ns", value: r => r.durations.std_ns, text: r => time(r.durations.std_ns)}], D.kernel_durations, {sort: 4, limit: 12});
if (D.kernels.length || D.ops.length) pick(D.kernels.length ? "kernels" : "ops"); else hide("kernels");

// ---- collectives, weight sync
const ofRanks = r => r.members.length ? `, ranks ${r.members.slice(0, 8).map(i => D.ranks[i].rank).join(", ")}${r.members.length > 8 ? ", …" : ""}` : "";
if (D.collectives.length || D.skews.length || D.weight_sync.length) {
  table($("skews-table"), "Transfer and waiting, matched over ranks", [{name: "worker", value: r => r.worker}, {name: "collective", value: r => r.key, text: r => r.key + ofRanks(r), cls: "wide"}, {name: "ranks", num: true, value: r => r.ranks}, {name: "calls", num: true, value: r => r.calls, text: r => count(r.calls)}, ns("transfer, mean", "transfer_ns"), ns("waiting, mean", "waiting_ns"), ns("skew of starts", "skew_ns"), {name: "last", value: r => rankName(r.last)}, {name: "in", num: true, value: r => r.last_share, text: r => r.last === null ? "–" : pct(r.last_share)}], D.skews);
  table($("collectives-table"), "Communication kernels", [{name: "worker", value: r => r.worker}, {name: "operation", value: r => r.op}, {name: "group", value: r => r.group, text: r => r.group + ofRanks(r)}, {name: "size", num: true, value: r => r.group_size, text: r => r.group_size < 0 ? "–" : r.group_size}, {name: "calls", num: true, value: r => r.count, text: r => count(r.count)}, ns("total", "total_ns", {bar: true}), ns("transfer, mean", "transfer_ns"), ns("waiting, mean", "waiting_ns"), ns("shortest", "min_ns"), {name: "message, mean", num: true, value: r => r.message_bytes, text: r => r.message_bytes ? size(r.message_bytes / r.count) : "–"}, {name: "bus GB/s", num: true, value: r => r.bus_gb_per_s, text: r => r.bus_gb_per_s === null ? "–" : r.bus_gb_per_s.toFixed(1)}], D.collectives);
  table($("sync-table"), "Weight sync, step by step", [{name: "step", num: true, value: r => r.step}, ns("first begin to last end", "total_ns", {bar: true}), ns("nobody in it", "between_ns", {title: "Inside that span, time in which no rank was in weight_sync: transfer by others, scheduling"}), {name: "span by worker", cls: "text", value: r => Object.entries(r.by_worker_ns).map(([w, t]) => `${w} ${time(t)}`).join(", ")}], D.weight_sync);
} else hide("collectives");

// ---- memory
if (D.memory.length) table($("memory-table"), "Peaks", [{name: "rank", value: r => rankName(r.rank)}, {name: "device", value: r => r.device, text: r => r.device < 0 ? "host" : "gpu " + r.device}, {name: "phase", value: r => r.phase, text: r => r.phase || "in no phase"}, {name: "allocated", num: true, value: r => r.allocated_bytes, text: r => size(r.allocated_bytes), bar: true}, {name: "reserved", num: true, value: r => r.reserved_bytes, text: r => size(r.reserved_bytes)}], D.memory, {sort: 3}); else hide("memory");

// ---- coverage, clocks, environment
$("coverage-text").append(el("p", "note", c.planned === null ? `No manifest in this folder: ${counted(c.reports.length, "report")} found and read. A manifest (rlprof harvest) would also say what is missing.` : `${counted(c.planned, "capture")} planned, ${c.arrived} arrived.`));
table($("ranks-table"), "Ranks of the job", [{name: "worker", value: r => r.worker}, {name: "read", num: true, value: r => r.ranks, text: r => `${r.ranks} of ${r.world}`, mark: r => r.missing.length > 0}, {name: "missing", value: r => r.missing[0], text: r => stepRuns(r.missing) + (r.missing_more ? ` and ${count(r.missing_more)} more` : "") || "–"}], c.ranks.filter(r => r.ranks < r.world));
table($("missing-table"), "Missing, empty, truncated, unreadable", [{name: "what", value: r => r.what, cls: "path"}, {name: "state", value: r => r.state, mark: () => true}, {name: "reason", value: r => r.reason, cls: "text"}], [...c.missing.map(m => ({what: m.capture, state: m.state, reason: m.reason})), ...c.unread.map(u => ({what: u.path, state: "not read", reason: u.reason})), ...c.reports.filter(r => r.truncated).map(r => ({what: r.path, state: "truncated", reason: r.truncated})), ...c.reports.filter(r => r.damaged).map(r => ({what: r.path, state: "damaged", reason: `${r.damaged} of ${r.events + r.damaged} events could not be read and are left out`})), ...c.listed.map(l => ({what: l.path, state: "listed only", reason: `${size(l.size_bytes)}, written ${new Date(l.modified_ns / 1e6).toISOString().slice(0, 19).replace("T", " ")} UTC`}))]);
table($("reports-table"), "Reports", [{name: "worker", value: r => r.worker}, {name: "rank", num: true, value: r => r.rank}, {name: "host", value: r => r.host}, {name: "backend", value: r => r.backend}, {name: "steps", value: r => r.steps[0], text: r => stepRuns(r.steps)}, {name: "size", num: true, value: r => r.size_bytes, text: r => size(r.size_bytes)}, {name: "events", num: true, value: r => r.events, text: r => count(r.events)}, {name: "read in", num: true, value: r => r.seconds, text: r => time(r.seconds * 1e9)}, {name: "file", value: r => r.path, cls: "path"}], c.reports, {limit: 10});
table($("clocks-table"), "Hosts", [{name: "host", value: r => r.host, text: r => r.host || "–"}, {name: "method", value: r => r.method}, ns("offset", "offset_ns"), {name: "drift, ppm", num: true, value: r => r.drift_ppm, text: r => r.drift_ppm.toFixed(2)}, {name: "residual", num: true, value: r => r.residual_ns, text: r => r.residual_ns === null ? "unknown" : time(r.residual_ns)}, {name: "matches", num: true, value: r => r.matches, text: r => count(r.matches)}], D.clocks.hosts);
if (D.timeline.length) { const p = $("timeline-note"); p.append("All ranks on one timeline: "); D.timeline.forEach((f, i) => { const a = el("a", "", f); a.href = f; a.download = f; p.append(i ? ", " : "", a); }); if (D.served) { const a = el("a", "", "open it in Perfetto"); a.href = "timeline"; p.append("; ", a, "."); } else p.append("; open it in ui.perfetto.dev (v58.2 or later for the zip) or in a Perfetto of your own. ", el("code", "", "rlprof report --serve"), " hands it over by a click."); }
else { const p = $("timeline-note"); p.append("Every range and kernel of all ranks on one timeline: ", el("code", "", "rlprof timeline " + (D.run.job || D.run.path)), ", or ", el("code", "", "rlprof report --serve " + (D.run.job || D.run.path)), ", which opens it in Perfetto."); }
$("environment-json").textContent = JSON.stringify(D.run, null, 2);

// ---- navigation
if (gantt) { gantt.follow(location.hash); addEventListener("hashchange", () => gantt.follow(location.hash)); }
const sections = [...document.querySelectorAll("section[data-nav]")].filter(s => !s.hidden);
sections.forEach(s => { const a = el("a", "", s.dataset.nav); a.href = "#" + s.id; $("nav").append(a); });
const mark = () => { const y = scrollY + 120; let on = 0; sections.forEach((s, i) => { if (s.offsetTop <= y) on = i; }); [...$("nav").children].forEach((a, i) => a.classList.toggle("on", i === on)); };
addEventListener("scroll", mark, {passive: true}); mark();
document.documentElement.dataset.ready = "1";
})();
