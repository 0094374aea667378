// Which run and which view are shown, the list of runs, and the pulse that keeps them live.

import { ask, Pulse, Refused } from "./api.js";
import { Compare } from "./compare.js";
import { Curves } from "./curves.js";
import { count, duration, h, onChange, score, setText } from "./dom.js";
import { Events, Tables, Tasks } from "./lists.js";
import { Overview } from "./overview.js";
import { Rollouts } from "./rollouts.js";

const VIEWS = { overview: ["Overview", Overview], curves: ["Curves", Curves], tasks: ["Tasks", Tasks], rollouts: ["Rollouts", Rollouts], events: ["Events", Events], cycles: ["Cycles", Tables], compare: ["Compare", Compare] };
const LIST_MS = 10000;
const $ = (id) => document.getElementById(id);
const page = { runs: [], folder: "", listed: 0, heard: 0, over: null, shown: "", view: null, abort: new AbortController() };

function place() {
  const [run = "", view = "overview"] = location.hash.replace(/^#\/?/, "").split("/").map(safely);
  return { run, view: VIEWS[view] ? view : "overview" };
}

function safely(part) {
  try { return decodeURIComponent(part); } catch { return ""; }
}

const address = (run, view) => `#/${encodeURIComponent(run)}/${view}`;

// --- the list of runs ------------------------------------------------------------------------------------------------

const drawRuns = onChange(([runs, here, view]) => {
  $("runs").replaceChildren(...runs.map((one) => h("li", {}, h("a", { href: address(one.run, view), "aria-current": one.run === here ? "page" : null },
    h("span", { class: `light ${mood(one)}`, title: one.state }), h("span", { class: "run-name" }, one.run),
    h("span", { class: "run-about" }, one.state === "unreadable" ? "cannot be read" : [one.state, one.step ? `step ${count(one.step)}` : null, one.accuracy !== null && one.accuracy !== undefined ? score(one.accuracy) : null].filter(Boolean).join(" · "))))));
});

function mood(one) {
  if (one.state === "running" && one.lives) return "alive";
  if (["failed", "interrupted", "unreadable"].includes(one.state)) return "bad";
  return one.state === "paused" || one.state === "stagnant" ? "unsure" : "idle";
}

async function list() {  // not of one view: to open another must not break it off
  const said = await ask("runs");
  page.runs = said.runs;
  page.folder = said.folder;
  page.listed = Date.now();
}

// --- one run ---------------------------------------------------------------------------------------------------------

const head = { name: h("h1"), state: h("span"), about: h("p", { class: "about" }), tabs: h("nav", { class: "tabs", "aria-label": "Views" }), body: h("div", { class: "body" }) };

const drawTabs = onChange(([run, view, tasks]) => {
  head.tabs.replaceChildren(...Object.entries(VIEWS).filter(([name]) => tasks || name !== "tasks").map(([name, [title]]) =>
    h("a", { href: address(run, name), "aria-current": name === view ? "page" : null }, title)));
  head.tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
});

function open(run, view) {
  page.abort.abort();
  page.abort = new AbortController();
  page.shown = `${run}/${view}`;
  if (page.over?.run !== run) page.over = null;
  page.view = new VIEWS[view][1](run, () => page.runs);
  page.view.asked = () => pulse.now();
  head.body.replaceChildren(page.view.root);
  if (!head.name.isConnected) $("view").replaceChildren(h("div", { class: "head" }, h("div", { class: "title" }, head.name, head.state), head.about), head.tabs, head.body);
  scrollTo(0, 0);
}

function headline(over) {
  setText(head.name, over.run);
  const kind = mood(over);
  for (const element of [head.state, $("bar-state")]) {
    element.className = `${element === head.state ? "state" : "bar-state"} ${kind}`;
    setText(element, over.lives && over.state === "running" ? over.phase : over.state);
  }
  setText($("bar-name"), over.run);
  const seen = over.lives ? "" : `, last sign of life ${duration(over.heartbeat_age_s)} ago`;
  setText(head.about, `${over.kind}, profile ${over.profile}${seen}${over.stop_reason ? `: ${over.stop_reason}` : ""}`);
  document.title = `${over.run}: step ${count(over.step)}`;
}

async function beat() {
  let { run, view } = place();
  const listing = !page.listed || Date.now() - page.listed > LIST_MS ? list() : null;
  if (!run || page.listed) await listing;
  if (!run && page.runs.length) {
    run = page.runs.find((one) => one.state !== "unreadable")?.run || page.runs[0].run;
    history.replaceState(null, "", address(run, view));
  }
  drawRuns([page.runs, run, view]);
  if (!run) { nothing(); heard(); return 5000; }
  if (page.shown !== `${run}/${view}`) open(run, view);
  const { signal } = page.abort;
  drawTabs([run, view, page.over?.finds_tasks ?? true]);
  const [over] = await Promise.all([ask("run", { run }, signal), listing]);
  drawRuns([page.runs, run, view]);
  if (page.shown !== `${run}/${view}`) return 0;
  page.over = over;
  headline(over);
  drawTabs([run, view, over.finds_tasks]);
  heard();
  await page.view.update(over, signal);
  return over.lives || page.view.series?.read < 1 ? 2000 : 8000;
}

function nothing() {
  page.shown = "";
  setText($("bar-name"), "Longhaul");
  $("view").replaceChildren(h("div", { class: "words" }, h("h1", {}, "No run yet"), h("p", {}, `There is no run in ${page.folder}. This page shows one as soon as it begins:`), h("pre", {}, "python -m orchestrator run")));
}

// --- how fresh it is -------------------------------------------------------------------------------------------------

function heard() {
  page.heard = Date.now();
  $("banner").hidden = true;
  document.body.classList.remove("stale");
  fresh();
}

function fresh() {
  const age = (Date.now() - page.heard) / 1000;
  if (page.heard) setText($("fresh"), age < 5 ? (page.over?.lives ? "live" : "up to date") : `seen ${duration(age)} ago`);
}
setInterval(() => { if (!document.hidden) fresh(); }, 1000);

function failed(error) {
  const banner = $("banner");
  document.body.classList.add("stale");
  if (error instanceof Refused && error.status === 403) {
    banner.replaceChildren("The link that was opened here is no longer valid. Open the one that ", h("code", {}, "python -m orchestrator web"), " printed last.");
  } else if (error instanceof Refused) {
    banner.replaceChildren(error.said.what || error.message, error.said.next ? h("code", {}, error.said.next) : "");
    if (page.shown) drawRuns([page.runs, place().run, place().view]);
    page.listed = 0;
  } else {
    banner.replaceChildren(page.heard ? `The page's server does not answer; what you see is ${duration((Date.now() - page.heard) / 1000)} old. Trying again.` : "The page's server does not answer. Trying again.");
    if (!(error instanceof TypeError) && error.name !== "TimeoutError") console.error(error);
  }
  banner.hidden = false;
  fresh();
}

// --- colours and the menu --------------------------------------------------------------------------------------------

function themes() {
  for (const button of $("themes").children) {
    button.setAttribute("aria-pressed", String(button.dataset.themeChoice === document.documentElement.dataset.theme));
    button.onclick = () => {
      document.documentElement.dataset.theme = button.dataset.themeChoice;
      try { localStorage.setItem("theme", button.dataset.themeChoice); } catch { /* not kept, then */ }
      themes();
    };
  }
}

function menu(isOpen) {
  document.body.classList.toggle("menu-open", isOpen);
  $("menu").setAttribute("aria-expanded", String(isOpen));
  $("veil").hidden = !isOpen;
}

$("menu").addEventListener("click", () => menu(!document.body.classList.contains("menu-open")));
$("veil").addEventListener("click", () => menu(false));
addEventListener("keydown", (event) => { if (event.key === "Escape") menu(false); });
const pulse = new Pulse(beat, failed);
addEventListener("hashchange", () => { menu(false); page.abort.abort(); page.abort = new AbortController(); pulse.now(); });
themes();
pulse.now();
