"use strict";
// Every request of a step, packed into lanes replica by replica: what it waited for, and which ones were last.
function showRequests(D, ui) {
  const {$, el, time, count, counted} = ui, tracks = D.whole_run && D.whole_run.requests ? D.whole_run.requests.tracks : [];
  if (!tracks.length) return null;
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const HUES = {prefill: "#e08a3c", decode: "#3b82c4", last: "#c9302c"}, LEFT = 150, RIGHT = 10, AXIS = 18, GAP = 6;
  const box = $("requests-tracks"), head = el("div", "head"), tools = el("div", "tools"), pick = el("select"), find = el("input"), note = el("p", "note"), legend = el("div", "legend"), frame = el("div", "gantt"), canvas = el("canvas");
  find.type = "search"; find.placeholder = "request id"; find.setAttribute("aria-label", "Find a request by its id"); find.id = "requests-find";
  tracks.forEach((t, i) => { const option = el("option", "", `${t.step}`); option.value = i; pick.append(option); });
  const chosen = el("label", "", "step "); chosen.append(pick); tools.append(chosen, find); head.append(el("h3", "", "Requests, replica by replica"), tools);
  canvas.id = "requests-canvas"; canvas.setAttribute("role", "img"); canvas.setAttribute("aria-label", "Requests of each replica over the phase; the last ones are in the table below");
  frame.append(canvas); box.append(head, note, legend, frame);
  ui.legend(legend, [["waits, or its state is not told", css("--idle")], ["prefill", HUES.prefill], ["decode", HUES.decode], ["among the last 5 %", HUES.last]]);
  let t = tracks[0], lanes = [], rows = [], view = [0, 1], drawn = [], drag = null;
  function choose() {
    t = tracks[+pick.value]; view = [0, Math.max(...t.rows.map(r => r[4]), 1)]; drawn = [];
    const order = t.rows.map((_, i) => i).sort((a, b) => t.rows[a][1] - t.rows[b][1] || t.rows[b][4] - t.rows[a][4]);
    const free = t.replicas.map(() => []); lanes = new Array(t.rows.length);
    for (const i of order) { const r = t.rows[i], mine = free[r[0]]; let lane = mine.findIndex(end => end <= r[1]); if (lane < 0) lane = mine.push(0) - 1; mine[lane] = Math.max(r[4], r[1] + 1); lanes[i] = lane; }
    rows = free.map(mine => mine.length);
    note.textContent = `Step ${t.step}, ${counted(t.rows.length, "request")}` + (t.left_out ? `, the longest; ${count(t.left_out)} shorter ones are not drawn` : "") + ". A request is a bar from its arrival to its last token; the dashed line is when 95 % were done. Ctrl, ⌘ or Shift with the wheel zooms, dragging moves, a double click shows everything.";
    draw();
  }
  function draw() {
    const total = Math.max(1, rows.reduce((s, n) => s + n, 0)), lane = Math.max(1, Math.min(12, 640 / total)), tall = AXIS + rows.reduce((s, n) => s + Math.max(n * lane, 14) + GAP, 0);
    const width = Math.max(box.clientWidth - 2, 300), ratio = devicePixelRatio || 1, g = canvas.getContext("2d");
    canvas.style.height = tall + "px"; canvas.style.width = width + "px"; canvas.width = width * ratio; canvas.height = tall * ratio;
    g.scale(ratio, ratio); g.font = "11px system-ui,sans-serif"; g.textBaseline = "middle";
    const x = us => LEFT + (us - view[0]) * (width - LEFT - RIGHT) / Math.max(view[1] - view[0], 1), soft = css("--soft"), idle = css("--idle"), ink = css("--ink"), asked = find.value.toLowerCase();
    g.fillStyle = soft; g.textAlign = "left"; g.fillText(time(view[0] * 1e3), LEFT, 8); g.textAlign = "right"; g.fillText(time(view[1] * 1e3) + " of the phase", width - RIGHT, 8);
    const tops = []; let y = AXIS;
    rows.forEach((n, i) => { tops.push(y); g.fillStyle = ink; g.textAlign = "left"; let name = t.replicas[i]; while (name.length > 4 && g.measureText(name).width > LEFT - 12) name = name.replace(/…$/, "").slice(0, -1) + "…"; g.fillText(name, 6, y + 7); y += Math.max(n * lane, 14) + GAP; g.fillStyle = css("--line"); g.fillRect(0, y - GAP / 2, width, 1); });
    g.save(); g.beginPath(); g.rect(LEFT, AXIS, width - LEFT - RIGHT, tall); g.clip();
    drawn = [];
    t.rows.forEach((r, i) => {
      const top = tops[r[0]] + lanes[i] * lane, high = lane > 3 ? lane - 1 : lane, begin = x(r[1]), end = Math.max(x(r[4]), begin + 1), told = r[2] >= 0 || r[3] >= 0, waited = r[2] >= 0 ? x(r[2]) : r[3] >= 0 ? x(r[3]) : begin, first = r[3] >= 0 ? x(r[3]) : waited, hit = !asked || t.ids[i].toLowerCase().includes(asked);
      if (end < LEFT || begin > width) return;
      const bar = (a, b, hue) => { if (b > a) { g.fillStyle = hue; g.fillRect(a, top, Math.max(b - a, .5), high); } };
      g.globalAlpha = hit ? 1 : .12;
      bar(begin, waited, idle); bar(waited, first, HUES.prefill); bar(first, end, r[4] > t.tail_us ? HUES.last : told ? HUES.decode : idle);
      if (asked && hit) { g.strokeStyle = ink; g.strokeRect(begin, top, end - begin, Math.max(high, 2)); }
      drawn.push([begin, end, top, lane, i]);
    });
    g.globalAlpha = 1; g.setLineDash([4, 3]); g.strokeStyle = ink; g.beginPath(); g.moveTo(x(t.tail_us), AXIS); g.lineTo(x(t.tail_us), tall); g.stroke(); g.restore();
    canvas.dataset.found = asked ? String(t.ids.filter(id => id.toLowerCase().includes(asked)).length) : "";
  }
  const us = value => value < 0 ? "not told" : time(value * 1e3);
  canvas.addEventListener("mousemove", e => {
    const at = canvas.getBoundingClientRect(), px = e.clientX - at.left, py = e.clientY - at.top;
    if (drag) { const shift = (drag[0] - px) * (drag[2] - drag[1]) / (at.width - LEFT - RIGHT); view = [drag[1] + shift, drag[2] + shift]; draw(); return; }
    const hit = drawn.find(([a, b, top, high]) => px >= a && px <= b && py >= top && py < top + Math.max(high, 2));
    if (!hit) { ui.hideTip(); return; }
    const r = t.rows[hit[4]], group = r[7] < 0 ? [] : t.rows.filter(other => other[7] === r[7]);
    ui.showTip(e, [`${t.ids[hit[4]]} on ${t.replicas[r[0]]}`, `${count(r[6])} tokens of ${count(r[5])} prompt tokens, ended by ${t.reasons[r[10]]}`, `came ${us(r[1])}, scheduled ${us(r[2])}, first token ${us(r[3])}, done ${us(r[4])}`, r[8] > 1 ? `turn ${r[8]} of its sample` : "", group.length > 1 ? `${counted(group.length, "request")} of its prompt, ${group.filter(other => other[4] < r[4]).length} done before` : "", r[9] > 0 ? `preempted ${counted(r[9], "time")}` : ""].filter(Boolean).join("\n"));
  });
  canvas.addEventListener("mouseleave", ui.hideTip);
  canvas.addEventListener("mousedown", e => { drag = [e.clientX - canvas.getBoundingClientRect().left, ...view]; });
  addEventListener("mouseup", () => { drag = null; });
  canvas.addEventListener("dblclick", () => { view = [0, Math.max(...t.rows.map(r => r[4]), 1)]; draw(); });
  canvas.addEventListener("wheel", e => {
    if (!(e.ctrlKey || e.metaKey || e.shiftKey)) return;
    e.preventDefault();
    const at = canvas.getBoundingClientRect(), share = Math.min(1, Math.max(0, (e.clientX - at.left - LEFT) / (at.width - LEFT - RIGHT))), middle = view[0] + share * (view[1] - view[0]), by = (e.deltaY || e.deltaX) > 0 ? 1.25 : .8;
    view = [middle - (middle - view[0]) * by, middle + (view[1] - middle) * by]; draw();
  }, {passive: false});
  pick.addEventListener("change", choose); find.addEventListener("input", draw); addEventListener("resize", draw);
  choose();
  return {draw};
}
