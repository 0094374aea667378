// All curves of a run: held-out scores, what steps report, and any metric by its name.

import { ask } from "./api.js";
import { Chart } from "./chart.js";
import { h, onChange, percent } from "./dom.js";
import { known, linesOf, scoreLines, Series } from "./series.js";

const RANGES = [[0, "All steps"], [1000, "Last 1,000"], [200, "Last 200"]];

export class Curves {
  constructor(run) {
    this.run = run;
    this.series = new Series(run);
    this.range = 0;
    this.smooth = true;
    this.charts = new Map();
    this.chosen = [];
    this.ranges = h("div", { class: "segments", role: "group", "aria-label": "Steps" }, RANGES.map(([steps, label]) =>
      h("button", { "aria-pressed": String(steps === 0), onclick: (event) => this.choose(steps, event.currentTarget) }, label)));
    this.smoothBox = h("input", { type: "checkbox", checked: true, onchange: (event) => { this.smooth = event.target.checked; this.charts.forEach((chart) => { chart.smooth = this.smooth; chart.draw(); }); } });
    this.reading = h("span", { class: "soft" });
    this.scoreGrid = h("div", { class: "grid-charts" });
    this.stepGrid = h("div", { class: "grid-charts" });
    this.search = h("input", { type: "search", placeholder: "Find a metric", "aria-label": "Find a metric", oninput: () => this.find() });
    this.names = h("ul", { class: "metrics" });
    this.root = h("div", { class: "stack" },
      h("div", { class: "tools" }, this.ranges, h("label", { class: "check" }, this.smoothBox, "Smooth"), this.reading),
      h("h2", {}, "Held-out problems"), this.scoreGrid,
      h("h2", {}, "Steps"), this.stepGrid,
      h("h2", {}, "Any metric"), h("div", { class: "card" }, this.search, this.names));
    this.metrics = onChange((metrics) => { this.all = metrics; this.find(); });
    this.asked = () => {};
  }

  choose(steps, button) {
    this.range = steps;
    for (const one of this.ranges.children) one.setAttribute("aria-pressed", String(one === button));
    this.asked();
  }

  find() {
    const words = this.search.value.trim().toLowerCase();
    const found = (this.all || []).filter((one) => !words || `${one.name} ${one.meaning}`.toLowerCase().includes(words));
    this.names.replaceChildren(...found.slice(0, words ? 60 : 12).map((one) => h("li", {},
      h("button", { class: "metric", "aria-pressed": String(this.chosen.includes(one.name)), onclick: () => this.toggle(one) }, h("code", {}, one.name), h("span", { class: "soft" }, one.meaning)))));
    if (!words && found.length > 12) this.names.append(h("li", { class: "soft" }, `and ${found.length - 12} more: type a word`));
  }

  toggle(metric) {
    this.chosen = this.chosen.includes(metric.name) ? this.chosen.filter((one) => one !== metric.name) : [metric.name, ...this.chosen].slice(0, 8);
    this.find();
    this.asked();
  }

  async update(over, signal) {
    this.metrics(over.metrics);
    if (over.scores_key !== this.scoresKey) {
      const said = await ask("scores", { run: this.run }, signal);
      this.scoresKey = said.key;
      this.drawScores(said.suites);
    }
    const own = this.chosen.map((name) => this.all.find((one) => one.name === name)).filter(Boolean)
      .map((one) => ({ title: one.name, note: one.meaning, unit: one.unit, lines: [{ metric: one.name, label: one.name, style: "a" }] }));
    const charts = [...own, ...over.charts];
    const names = [...new Set(charts.flatMap((chart) => chart.lines.map((line) => line.metric)))];
    if (!names.length) return;
    const found = this.range ? await this.series.newest(names, this.range, over.step, signal) : await this.series.all(names, signal);
    this.reading.textContent = this.series.read < 1 ? `reading every step for its spikes: ${percent(this.series.read)}` : "";
    const shown = charts.map((chart) => [`step ${chart.title}`, chart, linesOf(chart, found)]);
    this.lay(this.stepGrid, shown.map(([key, chart, lines]) => this.chart(key, { title: chart.title, note: chart.note, unit: chart.unit, smooth: this.smooth }, lines)));
  }

  drawScores(suites) {
    const roots = [];
    suites.forEach((suite, number) => suite.tasks.forEach((task) => {
      if (number > 0 && task.task !== "mean" && suite.tasks.length > 4) return;
      const title = number === 0 ? task.title : `${suite.suite}: ${task.title}`;
      roots.push(this.chart(`score ${title}`, { title, note: "accuracy; band: 95 % interval of greedy answers", range: [0, 1] }, scoreLines(task)));
    }));
    for (const [column, title, note] of [[6, "Length of sampled answers", "tokens"], [7, "Reward of greedy answers", "by the run's own reward"]]) {
      const lines = (suites[0]?.tasks || []).filter((task) => task.task !== "mean" || suites[0].tasks.length === 1)
        .map((task) => ({ label: task.title, style: known(task.task), x: task.points.map((point) => point[0]), y: task.points.map((point) => point[column]) }))
        .filter((line) => line.y.some((y) => y !== null));
      if (lines.length) roots.push(this.chart(`score ${title}`, { title, note: `${note}, held-out problems` }, lines));
    }
    if (!roots.length) roots.push(h("p", { class: "empty" }, "Not validated yet."));
    this.lay(this.scoreGrid, roots);
  }

  chart(key, options, lines) {
    let chart = this.charts.get(key);
    if (!chart) this.charts.set(key, (chart = new Chart(options)));
    chart.set(lines);
    return chart.root;
  }

  /** Only where the order changed: moving an element would take the focus from it. */
  lay(grid, roots) {
    if (roots.length !== grid.children.length || roots.some((root, n) => grid.children[n] !== root)) grid.replaceChildren(...roots);
  }
}
