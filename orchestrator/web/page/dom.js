// Elements, numbers and program text. Text from a run only ever becomes text: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes, listeners (onclick) and children; null and false children are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const setText = (element, text) => { if (element.textContent !== text) element.textContent = text; };

/** Calls `draw` with the value only when it differs from the last one, so that what a person reads or marks stays. */
export function onChange(draw) {
  let last;
  return (value) => {
    const now = JSON.stringify(value);
    if (now !== last) { last = now; draw(value); }
  };
}

// --- numbers ---------------------------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const count = (value) => (value === null || value === undefined ? "?" : whole.format(value));
export const percent = (share) => (share === null || share === undefined ? "?" : `${Math.round(share * 100)} %`);
export const score = (value) => (value === null || value === undefined ? "?" : value.toFixed(3));

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return "?";
  const s = Math.max(0, seconds), two = (n) => String(Math.floor(n)).padStart(2, "0");
  if (s < 9.95) return `${s.toFixed(1)} s`;
  const n = Math.round(s);
  if (n < 60) return `${n} s`;
  if (n < 3600) return `${Math.floor(n / 60)} m ${two(n % 60)} s`;
  if (n < 86400) return `${Math.floor(n / 3600)} h ${two((n % 3600) / 60)} m`;
  return `${Math.floor(n / 86400)} d ${two((n % 86400) / 3600)} h`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "?";
  let value = bytes;
  for (const unit of ["B", "kB", "MB"]) {
    if (value < 999.5) return `${value.toFixed(0)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} GB`;
}

/** A value of a metric, short: 0.1234, 12,400, 1.2e-5. */
export function figure(value, unit = "") {
  if (value === null || value === undefined) return "–";
  if (unit === "bytes") return size(value);
  const a = Math.abs(value);
  let text;
  if (Number.isInteger(value) && a < 1e7) text = whole.format(value);
  else if (a !== 0 && (a < 1e-3 || a >= 1e7)) text = value.toExponential(1);
  else if (a >= 1000) text = whole.format(value);
  else text = String(Number(value.toPrecision(3)));
  return unit === "s" ? `${text} s` : text;
}

/** A number on an axis. */
export function tick(value, unit = "") {
  if (unit === "bytes") return size(value);
  const a = Math.abs(value);
  if (a >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (a >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  if (a !== 0 && a < 1e-3) return Number(value.toPrecision(2)).toExponential();
  return String(Number(value.toPrecision(6)));
}

/** About `most` round numbers that span low to high. */
export function ticks(low, high, most = 5) {
  if (high === 0 && low === 0) high = 1;
  if (!(high > low)) { const pad = Math.abs(low) * 0.1 || 1; low -= pad / 2; high = low + pad; }
  const rough = (high - low) / Math.max(1, most - 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => power * factor >= rough * (1 - 1e-9));
  const found = [];
  for (let n = Math.floor(low / step + 1e-9); n <= Math.ceil(high / step - 1e-9); n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}
export const day = (at) => new Date(at * 1000).toLocaleDateString([], { weekday: "short", day: "numeric", month: "short", year: "numeric" });

// --- program text ----------------------------------------------------------------------------------------------------

const PYTHON = /(#[^\n]*)|("""[\s\S]*?"""|'''[\s\S]*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|\b(def|return|for|in|if|elif|else|while|import|from|as|class|lambda|and|or|not|is|None|True|False|try|except|finally|with|yield|pass|break|continue|raise|assert|global|nonlocal|del)\b|\b(\d[\w.]*)/g;
// What could reorder or hide text on the screen, beside control characters.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

export const visible = (text) => text.replace(HIDDEN, (one) => (one < " " ? String.fromCharCode(0x2400 + one.charCodeAt(0)) : "\ufffd"));

/** <pre> with Python's words coloured. */
export function program(text, attributes = {}) {
  return h("pre", { tabindex: "0", ...attributes }, coloured(visible(text)));
}

export function coloured(text) {
  const parts = [];
  let at = 0;
  for (const found of text.slice(0, 60000).matchAll(PYTHON)) {
    if (found.index > at) parts.push(text.slice(at, found.index));
    const kind = found[1] !== undefined ? "comment" : found[2] !== undefined ? "string" : found[3] !== undefined ? "word" : "number";
    parts.push(h("span", { class: `py-${kind}` }, found[0]));
    at = found.index + found[0].length;
  }
  parts.push(text.slice(at));
  return parts;
}
