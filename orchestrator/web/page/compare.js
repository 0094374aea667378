// Several runs: the same curves on one chart, figures side by side, and what differs between their profiles.

import { ask, Refused } from "./api.js";
import { Chart } from "./chart.js";
import { h, onChange } from "./dom.js";
import { table } from "./lists.js";
import { Series } from "./series.js";

const MOST = 6;
const METRICS = [["reward", "Reward in training", "mean of all rollouts; not a measure of progress", ""], ["seconds", "Time of a step", "seconds", "s"], ["tokens_mean", "Length of a completion", "mean tokens", ""], ["entropy", "Entropy", "nats a token", ""]];

export class Compare {
  constructor(run, runs) {
    this.run = run;
    this.runs = runs;
    this.chosen = [run];
    this.series = new Map();
    this.scores = new Map();
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Runs to compare" });
    this.accuracy = new Chart({ title: "Held-out accuracy", note: "greedy, mean of the tasks; band: 95 % interval", range: [0, 1], height: 280, wide: true });
    this.charts = METRICS.map(([, title, note, unit]) => new Chart({ title, note, unit, smooth: true }));
    this.tables = h("div", { class: "stack" });
    this.root = h("div", { class: "stack" }, h("p", { class: "soft lead" }, "Choose runs. The first one is what the others are compared with."), this.chips,
      this.accuracy.root, h("div", { class: "grid-charts" }, this.charts.map((chart) => chart.root)), this.tables);
    this.asked = () => {};
    this.list = onChange((names) => this.chips.replaceChildren(...names.map(([name, place]) => h("button", { class: `chip run${place < 0 ? "" : ` on run${place}`}`, "aria-pressed": String(place >= 0), onclick: () => this.toggle(name) }, name))));
    this.draw = onChange((said) => this.tables.replaceChildren(...tables(said)));
  }

  toggle(name) {
    this.chosen = this.chosen.includes(name) ? this.chosen.filter((one) => one !== name) : [...this.chosen, name].slice(-MOST);
    if (!this.chosen.length) this.chosen = [this.run];
    this.asked();
  }

  async update(over, signal) {
    this.list(this.runs().map((one) => [one.run, this.chosen.indexOf(one.run)]));
    const curves = await Promise.all(this.chosen.map(async (name) => {
      if (!this.series.has(name)) this.series.set(name, new Series(name));
      try {
        const [series, scores] = await Promise.all([this.series.get(name).all(METRICS.map(([metric]) => metric), signal), ask("scores", { run: name }, signal)]);
        return [name, series, scores.suites[0]?.tasks[0]];
      } catch (error) {
        if (error instanceof Refused && error.status !== 403) return [name, {}, undefined];
        throw error;
      }
    }));
    this.accuracy.set(curves.filter(([, , mean]) => mean).map(([name, , mean]) => ({ label: name, style: `run${this.chosen.indexOf(name)}`, x: mean.points.map((point) => point[0]), y: mean.points.map((point) => point[1]), low: mean.points.map((point) => point[2]), high: mean.points.map((point) => point[3]) })));
    METRICS.forEach(([metric], n) => this.charts[n].set(curves.filter(([, found]) => found[metric]).map(([name, found]) => ({ label: name, style: `run${this.chosen.indexOf(name)}`, x: found[metric].x, y: found[metric].y }))));
    this.draw([this.chosen, await ask("compare", { runs: JSON.stringify(this.chosen) }, signal)]);
  }
}

function tables([names, said]) {
  const rows = said.rows.filter((row) => row[0] !== "run");
  return [
    table("Figures", ["", ...names], rows.map((row) => row.map((cell) => cell.trim()))),
    said.differences.length ? h("section", { class: "card" }, h("h3", {}, "Held-out problems, paired"), h("ul", { class: "sentences" }, said.differences.map((text) => h("li", {}, text)))) : null,
    names.length > 1 ? table("Knobs that differ", ["", ...names], said.knobs) : null,
  ].filter(Boolean);
}
