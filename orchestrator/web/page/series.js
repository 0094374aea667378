// The curves of one run, kept here and brought up to date: only what may have changed is asked for again.

import { ask } from "./api.js";

export class Series {
  constructor(run) {
    this.run = run;
    this.names = "";
    this.forget();
  }

  forget() {
    Object.assign(this, { key: "", settled: 0, width: 1, last: 0, read: 1, lines: {} });
  }

  /** All steps of these metrics: name -> {x, y, low, high}. */
  async all(names, signal) {
    if (names.join() !== this.names) { this.names = names.join(); this.forget(); }
    const said = await ask("series", { run: this.run, metrics: this.names, key: this.key, first: this.key ? this.settled : 0 }, signal);
    if (said.first === 0) this.lines = {};
    for (const [name, line] of Object.entries(said.lines)) {
      const known = this.lines[name] || (this.lines[name] = { mean: [], low: [], high: [] });
      for (const part of ["mean", "low", "high"]) {
        known[part].length = Math.min(known[part].length, said.first);
        while (line[part] && known[part].length < said.first) known[part].push(null);
        known[part].push(...(line[part] || []));
      }
    }
    Object.assign(this, { key: said.key, settled: said.settled, width: said.width, last: said.last, read: said.read });
    return Object.fromEntries(Object.entries(this.lines).map(([name, line]) => [name, placed(line, this.width, this.last)]));
  }

  /** The newest steps alone. */
  async newest(names, steps, last, signal) {
    const first = Math.max(1, last - steps + 1);
    const said = await ask("window", { run: this.run, metrics: names.join(), from: first, to: Math.max(1, last) }, signal);
    this.read = 1;
    return Object.fromEntries(Object.entries(said.lines).map(([name, line]) => [name, line.low ? { x: said.x, y: line.mean, low: line.low, high: line.high } : { x: said.x, y: line.mean }]));
  }
}

function placed(line, width, last) {
  const x = line.mean.map((_, n) => Math.min(last, 1 + Math.round(n * width + (width - 1) / 2)));
  return line.low && line.low.length ? { x, y: line.mean, low: line.low, high: line.high } : { x, y: line.mean };
}

/** Lines for a chart of the server's list. */
export function linesOf(chart, found) {
  return chart.lines.filter((line) => found[line.metric]).map((line) => ({ label: line.label, style: line.style, ...found[line.metric] }));
}

/** Held-out curves of one task: greedy with its interval, sampled, worked share. */
export function scoreLines(task) {
  const x = task.points.map((point) => point[0]), column = (n) => task.points.map((point) => point[n]), style = known(task.task);
  const lines = [{ label: "greedy", style, x, y: column(1), low: column(2), high: column(3) }];
  if (column(4).some((y) => y !== null)) lines.push({ label: "sampled", style, dash: "dashed", x, y: column(4) });
  if (column(5).some((y) => y !== null)) lines.push({ label: "worked answers", style: "worked", dash: "dotted", x, y: column(5) });
  return lines;
}

export const known = (task) => (["ded", "abd", "ind", "mean"].includes(task) ? task : "a");
