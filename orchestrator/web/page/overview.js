// How a run stands: progress, scores, what `explain` says, two curves, the newest events.

import { ask } from "./api.js";
import { Chart, smoothed, spark } from "./chart.js";
import { clock, count, duration, figure, h, onChange, percent, score, setText, size } from "./dom.js";
import { linesOf, scoreLines, Series } from "./series.js";

export class Overview {
  constructor(run) {
    this.run = run;
    this.series = new Series(run);
    this.bar = h("span");
    this.where = h("span");
    this.left = h("span", { class: "soft" });
    this.tiles = h("div", { class: "tiles" });
    this.said = h("ul", { class: "sentences" });
    this.events = h("ol", { class: "events short" });
    this.scoreChart = new Chart({ title: "Held-out accuracy", note: "mean of the tasks; band: 95 % interval of greedy answers", range: [0, 1], height: 260 });
    this.stepChart = null;
    this.stepPlace = h("div");
    this.progress = h("div", { class: "progress", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100", "aria-label": "Progress of the cycle" }, this.bar);
    this.root = h("div", { class: "stack" },
      h("section", { class: "card hero", "aria-label": "Progress" }, h("div", { class: "hero-line" }, this.where, this.left), this.progress),
      this.tiles,
      h("div", { class: "two" }, this.scoreChart.root,
        h("section", { class: "card" }, h("h3", {}, "In plain sentences"), this.said)),
      h("div", { class: "two" }, this.stepPlace,
        h("section", { class: "card" }, h("h3", {}, "Newest events"), this.events)));
    this.tell = onChange((said) => this.said.replaceChildren(...said.map((text) => h("li", {}, text.startsWith("Next: ") ? ["Next: ", h("code", {}, text.slice(6))] : text))));
    this.list = onChange((events) => this.events.replaceChildren(...events.map(eventLine)));
    this.tile = onChange((tiles) => this.tiles.replaceChildren(...tiles.map(tile)));
  }

  async update(over, signal) {
    setText(this.where, `Step ${count(over.step)}`);
    const cycle = over.max_cycles ? `cycle ${over.cycle} of ${over.max_cycles}` : `cycle ${count(over.cycle)}`;
    const place = over.steps_in_cycle ? `${count(over.step_in_cycle)} of ${count(over.steps_in_cycle)} steps in ${cycle}` : cycle;
    setText(this.left, over.lives && over.cycle_left_s !== null ? `${place}, ${duration(over.cycle_left_s)} left` : place);
    const share = over.steps_in_cycle ? over.step_in_cycle / over.steps_in_cycle : 0;
    this.bar.style.width = `${100 * share}%`;
    this.progress.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    this.tell(over.explain);
    this.list(over.events.slice(0, 8));
    const scoring = over.scores_key !== this.scoresKey ? this.scores(signal) : null;
    const [first] = over.charts;
    if (!first) { await scoring; this.tile(tilesOf(over, this.mean, {})); return; }
    if (!this.stepChart || this.stepChart.title !== first.title) {
      this.stepChart = new Chart({ title: first.title, note: first.note, unit: first.unit, height: 220, smooth: true });
      this.stepPlace.replaceChildren(this.stepChart.root);
    }
    const wanted = ["reward", "seconds", ...first.lines.map((line) => line.metric)];
    const [found] = await Promise.all([this.series.all([...new Set(wanted)], signal), scoring]);
    this.stepChart.set(linesOf(first, found));
    this.tile(tilesOf(over, this.mean, found));
  }

  async scores(signal) {
    const said = await ask("scores", { run: this.run }, signal);
    this.scoresKey = said.key;
    this.mean = said.suites[0]?.tasks[0];
    this.scoreChart.set(this.mean ? scoreLines(this.mean) : []);
  }
}

function tilesOf(over, mean, found) {
  const tiles = [], last = over.scores.at(-1);
  if (last) {
    const change = Math.round(100 * (last.last.greedy - last.first.greedy));
    tiles.push({ label: "held-out, greedy", value: score(last.last.greedy), style: "mean", ys: mean?.points.map((point) => point[1]),
      note: `${change > 0 ? "+" : ""}${change} points since the start, 95 % [${last.last.low.toFixed(2)}, ${last.last.high.toFixed(2)}]` });
    if (last.last.sampled !== null) tiles.push({ label: "held-out, sampled", value: score(last.last.sampled), style: "worked", note: `${score(last.first.sampled)} at the start, temperature 1`, ys: mean?.points.map((point) => point[4]) });
  }
  if (found.reward) tiles.push({ label: "reward in training", value: figure(smoothed(found.reward.y).findLast((y) => y !== null)), style: "a", note: "smoothed; not a measure of progress", ys: thin(smoothed(found.reward.y)) });
  if (over.finds_tasks) tiles.push({ label: "tasks found", value: count(over.examples), note: "distinct and verified" });
  else if (over.problems) tiles.push({ label: "rollouts right", value: percent(over.problems.right), note: over.problems.text });
  tiles.push({ label: "a step", value: duration(over.step_median_s), style: "b", note: `${duration(over.training_s)} of training`, ys: found.seconds && thin(smoothed(found.seconds.y)) });
  if (over.worker_rss_bytes) tiles.push({ label: "memory of the worker", value: size(over.worker_rss_bytes), note: "resident" });
  if (over.failures) tiles.push({ label: "failed attempts", value: count(over.failures), bad: true, note: over.last_failure });
  return tiles.map((one) => ({ ...one, ys: one.ys && one.ys.map((y) => (y === null ? null : Number(y.toPrecision(3)))) }));
}

const thin = (ys) => (ys.length <= 120 ? ys : Array.from({ length: 120 }, (_, n) => ys[Math.floor((n * (ys.length - 1)) / 119)]));

function tile(one) {
  return h("section", { class: one.bad ? "card tile bad" : "card tile" },
    h("div", { class: "label" }, one.label), h("div", { class: "value" }, one.value), h("div", { class: "note" }, one.note),
    one.ys && one.ys.length > 1 ? spark(one.ys, one.style) : null);
}

export function eventLine(one) {
  return h("li", { class: `event ${one.type}` }, h("time", { datetime: new Date(one.at * 1000).toISOString() }, clock(one.at)),
    h("span", { class: `tag ${one.type}` }, one.type.replaceAll("_", " ")), h("span", { class: "what" }, one.text));
}
