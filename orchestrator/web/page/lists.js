// Tasks, events, and the tables of a run.

import { ask } from "./api.js";
import { count, coloured, day, duration, h, onChange, percent, program, score, size, visible } from "./dom.js";
import { eventLine } from "./overview.js";
import { known } from "./series.js";

export class Tasks {
  constructor(run) {
    this.run = run;
    this.kind = "";
    this.kinds = h("div", { class: "chips", role: "group", "aria-label": "Kinds of task" });
    this.grid = h("div", { class: "grid-cards" });
    this.root = h("div", { class: "stack" }, h("p", { class: "soft lead" }, "Programs that the model wrote, newest first. Each was run and verified before it became a task."), this.kinds, this.grid);
    this.list = onChange((tasks) => { this.tasks = tasks; this.draw(); });
  }

  async update(over, signal) {
    if (over.step === this.step && this.tasks) return;
    this.list((await ask("tasks", { run: this.run }, signal)).tasks);
    this.step = over.step;
  }

  draw() {
    const kinds = [...new Map(this.tasks.map((task) => [task.task, task.title]))];
    this.kinds.replaceChildren(...[["", "All"], ...kinds].map(([kind, title]) =>
      h("button", { class: "chip", "aria-pressed": String(kind === this.kind), onclick: () => { this.kind = kind; this.draw(); } }, title)));
    const shown = this.tasks.filter((task) => !this.kind || task.task === this.kind);
    this.grid.replaceChildren(...(shown.length ? shown.map(taskCard) : [h("p", { class: "empty" }, "No task was found yet.")]));
  }
}

function taskCard(task) {
  const rate = task.solve_rate;
  return h("article", { class: "card task" },
    h("header", {}, h("span", { class: `tag kind ${known(task.task)}` }, task.title), h("span", { class: "soft" }, `step ${count(task.step)}`),
      rate !== null && h("span", { class: "rate", title: "share of the solver's answers that were right" }, meter(rate), `solved ${percent(rate)}`)),
    program(task.program),
    h("div", { class: "calls" }, task.pairs.map(([given, wanted]) => h("code", {}, "f(", coloured(visible(given)), ") → ", coloured(visible(wanted))))));
}

export function meter(share) {
  const fill = h("i");
  fill.style.width = `${Math.round(100 * share)}%`;
  return h("span", { class: "meter", "aria-hidden": "true" }, fill);
}

const KINDS = [["", "All but steps"], ["checkpoint", "Checkpoints"], ["validation", "Validations"], ["warning", "Warnings"], ["started", "Starts"], ["done", "Ends"], ["oom_retry", "Out of memory"], ["step", "Steps"]];

export class Events {
  constructor(run) {
    this.run = run;
    this.older = [];
    this.kind = h("select", { "aria-label": "Kind of event", onchange: () => this.again() }, KINDS.map(([value, title]) => h("option", { value }, title)));
    this.search = h("input", { type: "search", placeholder: "Search in the text", "aria-label": "Search in the text of events", oninput: () => { clearTimeout(this.timer); this.timer = setTimeout(() => this.again(), 250); } });
    this.list = h("ol", { class: "events" });
    this.more = h("button", { class: "more", onclick: () => this.further() }, "Older");
    this.root = h("div", { class: "stack" }, h("div", { class: "tools" }, this.kind, this.search), h("div", { class: "card" }, this.list, this.more));
    this.draw = onChange((events) => {
      const parts = [];
      let last = "";
      for (const one of events) {
        const date = day(one.at);
        if (date !== last) parts.push(h("li", { class: "day" }, (last = date)));
        parts.push(eventLine(one));
      }
      this.list.replaceChildren(...(parts.length ? parts : [h("li", { class: "empty" }, this.before ? "None among the newest; look further back." : "None.")]));
    });
    this.asked = () => {};
  }

  get question() { return { run: this.run, type: this.kind.value, q: this.search.value.trim() }; }

  again() { this.older = []; this.before = undefined; this.asked(); }

  async update(over, signal) {
    const said = await ask("events", this.question, signal);
    if (!this.older.length) this.before = said.before;
    const oldest = said.events.at(-1)?.number ?? Infinity;
    this.newest = said.events;
    this.show(this.older.filter((one) => one.number < oldest));
  }

  show(older) {
    this.draw([...this.newest, ...older]);
    this.more.hidden = !this.before;
  }

  async further() {
    const asked = JSON.stringify(this.question);
    const said = await ask("events", { ...this.question, before: this.before });
    if (asked !== JSON.stringify(this.question)) return; // another filter was chosen meanwhile
    // What was among the newest until now stays, should it leave them before the next answer.
    const known = new Set();
    this.older = [...this.newest, ...this.older, ...said.events].filter((one) => !known.has(one.number) && known.add(one.number));
    this.before = said.before;
    const oldest = this.newest.at(-1)?.number ?? Infinity;
    this.show(this.older.filter((one) => one.number < oldest));
  }
}

export class Tables {
  constructor(run) {
    this.run = run;
    this.root = h("div", { class: "stack" });
    this.draw = onChange(([said, finds]) => this.root.replaceChildren(...tables(said, finds), this.knobs));
    this.knobs = h("details", { class: "card knobs", ontoggle: () => this.profile() }, h("summary", {}, "Profile, as resolved"), h("div", { class: "soft" }, "…"));
  }

  async update(over, signal) {
    this.draw([await ask("cycles", { run: this.run }, signal), over.finds_tasks]);
  }

  async profile() {
    if (this.known) return;
    this.known = await ask("profile", { run: this.run });
    const rows = (part) => Object.entries(part).map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, h("code", {}, typeof value === "string" ? value : JSON.stringify(value)))));
    const sections = Object.entries(this.known).filter(([, value]) => value && typeof value === "object" && !Array.isArray(value));
    const plain = Object.fromEntries(Object.entries(this.known).filter(([, value]) => !value || typeof value !== "object" || Array.isArray(value)));
    this.knobs.lastChild.replaceWith(h("div", {}, [["", plain], ...sections].map(([name, part]) => [name && h("h4", {}, `[${name}]`), h("table", { class: "knobs" }, rows(part))])));
  }
}

function tables(said, finds) {
  const found = finds ? ["new tasks", "learnable"] : [];
  return [
    table("Cycles", ["cycle", "phase", "steps", "state", "greedy", "sampled", ...found, "training", "verdict"], said.cycles.map((one) => [
      count(one.cycle), one.phase, one.end_step > one.first_step ? `${count(one.first_step)} – ${count(one.end_step - 1)}` : "", one.state,
      one.greedy === undefined || one.greedy === null ? "" : score(one.greedy), one.sampled === undefined || one.sampled === null ? "" : score(one.sampled),
      ...(finds ? [count(one.new_tasks), one.learnable === null ? "" : percent(one.learnable)] : []), duration(one.train_s), `${one.verdict} ${one.evidence}`.trim()]),
    said.cycles_done > said.cycles.length ? `the newest ${said.cycles.length} of ${count(said.cycles_done)}` : ""),
    table("Checkpoints", ["step", "cycle", "size", "digest", "verified", "path"], said.checkpoints.map((one) => [
      count(one.step), count(one.cycle), size(one.bytes), one.digest, one.verified ? "yes" : "sizes only", one.head ? `${one.path} (head)` : one.path])),
    said.evaluations.length ? table("Evaluations", ["checkpoint", "suite", "score [95 %]", "how"], said.evaluations.map((one) => [one.target, one.suite, one.score, one.how])) : null,
    table("Failed attempts", ["when", "cycle", "role", "attempt", "at step", "failure", "message"], said.failures.map((one) => [
      new Date(one.at * 1000).toLocaleString(), count(one.cycle), one.role, one.attempt, count(one.step_reached), one.failure, one.message.slice(0, 300)])),
  ].filter(Boolean);
}

export function table(title, heads, rows, note = "") {
  return h("section", { class: "card" }, h("h3", {}, title, note && h("span", { class: "soft" }, ` ${note}`)),
    rows.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, h("table", {}, h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, String(cell)))))))) : h("p", { class: "empty" }, "None."));
}
