"use strict";
// Ranks by the number of their collectives, group by group, where they stood still.
function showHangs(D, ui) {
  const {$, el} = ui, LATEST = 16;
  if (!D.hangs.length) { ui.hide("hang"); return; }
  const runs = ranks => { const out = []; for (const r of ranks) { const l = out[out.length - 1]; if (l && r === l[1] + 1) l[1] = r; else out.push([r, r]); } return (ranks.length > 1 ? "ranks " : "rank ") + out.map(([a, b]) => a === b ? a : `${a}-${b}`).join(", "); };
  function squares(row, group, index, top) {
    const line = el("span", "squares"), from = Math.max(1, top - LATEST + 1), last = row.last[index];
    for (let n = from; n <= top; n++) {
      const open = row.open_in === index && n === last, state = n > last ? "none" : open ? "open" : "ended", cell = el("i", state);
      ui.hover(cell, `${group} #${n}: ${state === "none" ? "not begun by" : open ? "open on" : "ended on"} ${runs(row.ranks)}`); line.append(cell);
    }
    return line;
  }
  for (const hang of D.hangs) {
    const box = el("div", "hang"), said = hang.hung ? hang.text[0].toUpperCase() + hang.text.slice(1) : `When dumps were asked for: ${hang.text}`;
    box.append(el("p", hang.hung ? "warn" : "", said + (hang.sure ? "." : " (not sure).")));
    const tops = hang.groups.map((_, i) => Math.max(...hang.ranks.map(r => r.last[i]), 0));
    if (hang.ranks.length) { const t = el("table"), head = el("tr"); ["ranks", ...hang.groups.map((g, i) => `${g}, to #${tops[i]}`), "now"].forEach(n => head.append(el("th", "", n)));
      const body = el("tbody"); t.append(el("thead")); t.firstChild.append(head); t.append(body);
      for (const row of hang.ranks) { const tr = el("tr"); tr.append(el("td", row.is_missing ? "red" : "", runs(row.ranks) + (row.is_missing ? ": missing" : "")));
        hang.groups.forEach((g, i) => { const td = el("td"); td.append(squares(row, g, i, tops[i])); tr.append(td); });
        const now = el("td"); if (row.frames.length) { const d = el("details"); d.append(el("summary", "", row.now), el("pre", "", row.frames.join("\n"))); now.append(d); } else now.textContent = row.now; tr.append(now); body.append(tr); }
      const scroll = el("div", "scroll"); scroll.append(t); box.append(scroll); }
    hang.notes.forEach(n => box.append(el("p", "note", n))); $("hang-rows").append(box);
  }
  if (D.hangs.some(h => h.ranks.length)) ui.legend($("hang-legend"), [["ended", ".ended"], ["open: it waits", ".open"], ["not begun", ".none"]]);
  else $("hang").querySelector(".note").textContent = "By the job's recorder; no dump of PyTorch's flight recorder has come home.";
}
