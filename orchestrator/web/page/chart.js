// Line charts as SVG, drawn anew for the width that there is. Colours come from the style sheet, by class.

import { count, figure, h, s, setText, tick, ticks } from "./dom.js";

const LEFT = 46, RIGHT = 12, TOP = 8, BOTTOM = 22;
const sizes = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.chart?.draw()));

/** lines: [{label, style, dash, x: [], y: [], low: [], high: []}]; null values are gaps. */
export class Chart {
  constructor({ title, note = "", unit = "", range = null, height = 190, smooth = false, wide = false, xName = "step" }) {
    Object.assign(this, { title, unit, range, height, smooth, xName });
    this.lines = [];
    this.hidden = new Set();
    this.cursor = null;
    this.legend = h("div", { class: "legend" });
    this.at = h("span", { class: "at" });
    this.svg = s("svg", { "aria-hidden": "true" });
    this.plot = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label": title }, this.svg);
    this.spoken = h("span", { class: "unseen", "aria-live": "polite" });
    this.root = h("figure", { class: wide ? "card chart wide" : "card chart" },
      h("figcaption", {}, h("h3", {}, title), this.at, h("p", { class: "note" }, note)), this.legend, this.plot, this.spoken);
    this.plot.style.minHeight = `${height}px`;
    this.plot.chart = this;
    sizes.observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerdown", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.move(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.move(null));
  }

  set(lines) {
    this.lines = lines.filter((line) => line.y.some((value) => value !== null && value !== undefined));
    const names = JSON.stringify(this.lines.map((line) => [line.label, line.style]));
    if (names !== this.names) { this.names = names; this.list(); }
    this.draw();
  }

  list() {
    this.values = [];
    this.legend.replaceChildren(...this.lines.map((line) => {
      const value = h("b"), mark = s("svg", { viewBox: "0 0 18 8", "aria-hidden": "true" }, s("path", { d: "M1 4H17", class: `line ${line.style} ${line.dash || ""}` }));
      this.values.push(value);
      const button = h("button", { class: "key", "aria-pressed": String(!this.hidden.has(line.label)), onclick: () => {
        this.hidden.has(line.label) ? this.hidden.delete(line.label) : this.hidden.add(line.label);
        button.setAttribute("aria-pressed", String(!this.hidden.has(line.label)));
        this.draw();
      } }, mark, line.label, value);
      return button;
    }));
  }

  get shown() { return this.lines.filter((line) => !this.hidden.has(line.label)); }

  draw() {
    const width = this.plot.clientWidth, height = (this.tall = this.plot.clientHeight);
    if (!width || !height) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const lines = this.shown;
    if (!lines.length) {
      this.scale = null;
      this.svg.replaceChildren(s("text", { x: width / 2, y: height / 2, class: "tick mid" }, "nothing was measured yet"));
      this.plot.setAttribute("aria-label", `${this.title}: nothing was measured yet`);
      this.last();
      return;
    }
    const xs = lines.flatMap((line) => [line.x[0], line.x.at(-1)]);
    const numbers = lines.flatMap((line) => [line.y, line.low || [], line.high || []]).flat().filter((one) => one !== null && one !== undefined);
    const yTicks = ticks(...(this.range || [Math.min(...numbers), Math.max(...numbers)]), height < 150 ? 3 : 5);
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
    const px = (x) => LEFT + (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5) * (width - LEFT - RIGHT);
    const py = (y) => height - BOTTOM - (y - yTicks[0]) / (yTicks.at(-1) - yTicks[0]) * (height - TOP - BOTTOM);
    this.scale = { px, py, x0, x1, width };
    const parts = [];
    for (const value of yTicks) {
      parts.push(s("path", { class: "grid", d: `M${LEFT} ${py(value).toFixed(1)}H${width - RIGHT}` }));
      parts.push(s("text", { class: "tick end", x: LEFT - 7, y: py(value) + 4 }, tick(value, this.unit)));
    }
    const labels = ticks(x0, x1, Math.max(4, Math.min(9, Math.floor(width / 75)))).filter((x) => x >= x0 && x <= x1);
    for (const x of labels) {
      const place = px(x) > width - RIGHT - 16 ? "end" : px(x) < LEFT + 8 ? "start" : "mid";
      parts.push(s("text", { class: `tick ${place}`, x: px(x), y: height - 5 }, tick(x)));
    }
    for (const line of lines) if (line.low && line.high) parts.push(s("path", { class: `band ${line.style}`, d: area(line, px, py) }));
    for (const line of lines) {
      const path = (values, kind) => s("path", { class: `${kind} ${line.style} ${line.dash || ""}`, d: stroke(line.x, values, px, py) });
      if (this.smooth && line.y.length > 12) parts.push(path(line.y, "line faint"), path(smoothed(line.y), "line"));
      else parts.push(path(line.y, "line"));
      if (line.y.filter((y) => y !== null).length === 1) {
        const only = line.y.findIndex((y) => y !== null);
        parts.push(s("circle", { class: `dot ${line.style}`, r: 3.5, cx: px(line.x[only]), cy: py(line.y[only]) }));
      }
    }
    this.hair = s("g", { class: "hair" });
    this.svg.replaceChildren(...parts, this.hair);
    const words = lines.map((line) => `${line.label} ${figure(line.y.find((y) => y !== null), this.unit)} to ${figure(line.y.findLast((y) => y !== null), this.unit)}`);
    this.plot.setAttribute("aria-label", `${this.title}, ${this.xName} ${count(x0)} to ${count(x1)}: ${words.join("; ")}. Arrow keys read values.`);
    this.cursor === null ? this.last() : this.move(this.cursor);
  }

  /** The legend's numbers without a cursor: the newest. */
  last() {
    this.lines.forEach((line, n) => setText(this.values[n], this.hidden.has(line.label) ? "" : figure((this.smooth && line.y.length > 12 ? smoothed(line.y) : line.y).findLast((y) => y !== null && y !== undefined), this.unit)));
    setText(this.at, "");
  }

  point(event) {
    if (!this.scale) return;
    const box = this.plot.getBoundingClientRect(), share = (event.clientX - box.left - LEFT) / (this.scale.width - LEFT - RIGHT);
    this.move(this.nearest(this.scale.x0 + Math.min(1, Math.max(0, share)) * (this.scale.x1 - this.scale.x0)));
  }

  /** The measured x that is nearest. */
  nearest(x) {
    return this.shown.map((line) => line.x[closest(line.x, x)]).reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a));
  }

  key(event) {
    if (!this.scale) return;
    const xs = [...new Set(this.shown.flatMap((line) => line.x))].sort((a, b) => a - b);
    const here = this.cursor === null ? xs.length : xs.indexOf(this.cursor), far = Math.max(1, Math.round(xs.length / 20));
    const there = { ArrowLeft: here - 1, ArrowRight: here + 1, PageDown: here + far, PageUp: here - far, Home: 0, End: xs.length - 1 }[event.key];
    if (event.key === "Escape") this.move(null);
    if (there === undefined) return;
    event.preventDefault();
    this.move(xs[Math.min(xs.length - 1, Math.max(0, there))], true);
  }

  move(x, aloud = false) {
    this.cursor = x;
    if (!this.scale) return;
    if (x === null) { this.hair.replaceChildren(); this.last(); return; }
    const { px, py } = this.scale, words = [`${this.xName} ${count(x)}`];
    const marks = [s("path", { class: "cursor", d: `M${px(x).toFixed(1)} ${TOP}V${this.tall - BOTTOM}` })];
    this.lines.forEach((line, n) => {
      if (this.hidden.has(line.label)) return;
      const at = closest(line.x, x), y = line.y[at], near = Math.abs(line.x[at] - x) <= (this.scale.x1 - this.scale.x0) / 100;
      if (!near || y === null || y === undefined) { setText(this.values[n], ""); return; }
      const spread = line.low && line.high && line.high[at] > line.low[at] ? ` [${figure(line.low[at], this.unit)}, ${figure(line.high[at], this.unit)}]` : "";
      setText(this.values[n], figure(y, this.unit) + spread);
      words.push(`${line.label} ${figure(y, this.unit)}`);
      marks.push(s("circle", { class: `dot ${line.style}`, r: 3.5, cx: px(line.x[at]), cy: py(y) }));
    });
    this.hair.replaceChildren(...marks);
    setText(this.at, `${this.xName} ${count(x)}`);
    if (aloud) setText(this.spoken, words.join(", "));
  }
}

/** Index of the nearest of sorted numbers. */
function closest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (low < high) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle + 1; else high = middle; }
  return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
}

function stroke(xs, ys, px, py) {
  let path = "", pen = "M";
  for (let n = 0; n < xs.length; n++) {
    if (ys[n] === null || ys[n] === undefined) { if (ys.length < 200) continue; pen = "M"; continue; }
    path += `${pen}${px(xs[n]).toFixed(1)} ${py(ys[n]).toFixed(1)}`;
    pen = "L";
  }
  return path;
}

function area(line, px, py) {
  const there = line.x.map((_, n) => n).filter((n) => line.low[n] !== null && line.low[n] !== undefined);
  const up = there.map((n) => `${px(line.x[n]).toFixed(1)} ${py(line.high[n]).toFixed(1)}`);
  const down = there.reverse().map((n) => `${px(line.x[n]).toFixed(1)} ${py(line.low[n]).toFixed(1)}`);
  return up.length ? `M${up.join("L")}L${down.join("L")}Z` : "";
}

/** An exponential mean over about a twentieth of the curve, without a bias towards its first value. */
export function smoothed(ys) {
  const keep = 1 - 1 / Math.max(3, Math.min(40, ys.length / 20));
  let sum = 0, weight = 0;
  return ys.map((y) => {
    if (y === null || y === undefined) return null;
    sum = keep * sum + (1 - keep) * y;
    weight = keep * weight + (1 - keep);
    return sum / weight;
  });
}

/** A curve without axes, for a tile. */
export function spark(ys, style, width = 120, height = 30) {
  const there = ys.filter((y) => y !== null && y !== undefined);
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", "aria-hidden": "true", preserveAspectRatio: "none" });
  if (there.length > 1) {
    const low = Math.min(...there), high = Math.max(...there);
    const px = (n) => 1.5 + n / (ys.length - 1) * (width - 3), py = (y) => height - 3 - (high > low ? (y - low) / (high - low) : 0.5) * (height - 6);
    const path = stroke(ys.map((_, n) => n), ys, px, py);
    svg.append(s("path", { class: `band ${style}`, d: `${path}L${px(ys.length - 1)} ${height}L${px(0)} ${height}Z` }), s("path", { class: `line ${style}`, d: path, "vector-effect": "non-scaling-stroke" }));
  }
  return svg;
}
