// Rollouts of one prompt side by side: what was asked, what was answered, and what it earned.

import { ask, Refused } from "./api.js";
import { coloured, count, figure, h, visible } from "./dom.js";

export class Rollouts {
  constructor(run) {
    this.run = run;
    this.step = null;
    this.follow = true;
    this.group = "";
    this.steps = [];
    this.chosen = [0, 0];
    this.select = h("select", { "aria-label": "Step", onchange: () => { this.follow = this.select.selectedIndex === 0; this.take(this.steps[this.select.selectedIndex]); } });
    this.newer = h("button", { class: "arrow", "aria-label": "Newer step", onclick: () => this.turn(-1) }, "‹");
    this.before = h("button", { class: "arrow", "aria-label": "Older step", onclick: () => this.turn(1) }, "›");
    this.groups = h("select", { class: "groups", "aria-label": "Prompt", onchange: () => { this.group = this.groups.value; this.load(); } });
    this.body = h("div", { class: "stack" });
    this.root = h("div", { class: "stack" }, h("div", { class: "tools" }, this.newer, this.select, this.before, this.groups), this.body);
  }

  async update(over, signal) {
    const steps = (await ask("rollout_steps", { run: this.run }, signal)).steps;
    const changed = JSON.stringify(steps) !== JSON.stringify(this.steps);
    this.steps = steps;
    if (!steps.length) {
      this.select.parentElement.hidden = true;
      this.body.replaceChildren(h("div", { class: "card empty" }, h("p", {}, "No rollouts are on disk now."),
        h("p", {}, "A run keeps those since its last checkpoint. To keep more of them to read: ", h("code", {}, `python -m orchestrator run --run ${over.run} --set retention.keep_rollout_steps=20`))));
      this.step = null;
      return;
    }
    this.select.parentElement.hidden = false;
    if (changed) this.select.replaceChildren(...steps.map((one) => h("option", { value: `${one.cycle}/${one.step}` }, `step ${count(one.step)}`)));
    const here = steps.findIndex((one) => this.step && one.step === this.step.step && one.cycle === this.step.cycle);
    if (this.step === null || here < 0) await this.take(steps[0], signal);
    else this.select.selectedIndex = here;
    this.arrows();
  }

  arrows() {
    const here = this.select.selectedIndex;
    this.newer.disabled = here <= 0;
    this.before.disabled = here >= this.steps.length - 1;
  }

  turn(by) {
    const there = this.select.selectedIndex + by;
    if (this.steps[there]) { this.select.selectedIndex = there; this.take(this.steps[there]); }
  }

  async take(step, signal) {
    this.step = step;
    this.group = "";
    this.select.selectedIndex = this.steps.indexOf(step);
    this.arrows();
    await this.load(signal);
  }

  async load(signal) {
    const asked = this.step, number = (this.loading = (this.loading || 0) + 1);
    this.body.setAttribute("aria-busy", "true");
    try {
      const said = await ask("rollouts", { run: this.run, cycle: asked.cycle, step: asked.step, group: this.group }, signal);
      if (number === this.loading) this.show(said);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.body.replaceChildren(h("div", { class: "card empty" }, h("p", {}, error.said.what), error.said.next && h("p", {}, h("code", {}, error.said.next))));
    } finally {
      this.body.removeAttribute("aria-busy");
    }
  }

  show(said) {
    this.group = said.chosen;
    this.groups.replaceChildren(...said.groups.map((one) => h("option", { value: one.key, selected: one.key === said.chosen }, groupName(one))));
    this.groups.value = said.chosen;
    if (!said.rollouts.length) { this.body.replaceChildren(h("div", { class: "card empty" }, "These rollouts hold no text, as those of the worker that only proves durability.")); return; }
    const rewards = said.rollouts.map((one) => one.reward ?? -Infinity);
    this.chosen = [rewards.indexOf(Math.max(...rewards)), rewards.lastIndexOf(Math.min(...rewards))];
    if (this.chosen[0] === this.chosen[1] && said.rollouts.length > 1) this.chosen[1] = this.chosen[0] === 0 ? 1 : 0;
    this.said = said;
    this.draw();
  }

  draw() {
    const said = this.said, group = said.groups.find((one) => one.key === said.chosen);
    const solved = group.role === "propose" ? `${group.right} of ${group.size} are valid and new` : `${group.right} of ${group.size} are right`;
    const spread = group.low !== null && group.high > group.low ? `rewards from ${figure(group.low)} to ${figure(group.high)}` : "all rewards are equal: nothing is learnt from this group";
    const panes = said.rollouts.length > 1 ? [0, 1] : [0];
    this.body.replaceChildren(
      h("section", { class: "card" }, h("h3", {}, "Prompt"), h("p", { class: "note" }, `${solved}; ${spread}${said.left_out ? `; ${count(said.left_out)} more are left out` : ""}`), h("pre", { class: "prompt", tabindex: "0" }, coloured(visible(said.prompt)))),
      h("div", { class: "panes" }, panes.map((side) => this.pane(side))));
  }

  pane(side) {
    const one = this.said.rollouts[this.chosen[side]], other = this.said.rollouts[this.chosen[1 - side]];
    const proposal = this.said.groups.find((group) => group.key === this.said.chosen).role === "propose";
    const chips = this.said.rollouts.map((rollout, number) => h("button", { class: `chip small ${verdict(rollout, proposal)[0]}`, "aria-pressed": String(number === this.chosen[side]), "aria-label": `Rollout ${number + 1}: ${verdict(rollout, proposal)[1]}, reward ${figure(rollout.reward)}`,
      onclick: () => { this.chosen[side] = number; this.draw(); } }, String(number + 1)));
    const [kind, words] = verdict(one, proposal), parts = Object.entries(one.parts);
    return h("article", { class: "card pane", "aria-label": `Rollout ${this.chosen[side] + 1}` },
      h("div", { class: "chips tight", role: "group", "aria-label": side ? "Right rollout" : "Left rollout" }, chips),
      h("header", {}, h("span", { class: `verdict ${kind}` }, words), h("span", { class: "reward" }, h("span", { class: "soft" }, "reward "), one.reward === null ? "none" : figure(one.reward)), h("span", { class: "soft" }, `${count(one.tokens)} tokens`)),
      parts.length ? h("dl", { class: "parts" }, parts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, figure(value))])) : null,
      one.failure ? h("p", { class: "bad" }, one.failure) : null,
      h("h4", {}, proposal ? "Program and input" : "Answer"), h("pre", { class: one.answer === null ? "answer none" : "answer", tabindex: "0" }, one.answer === null ? "none was found" : coloured(visible(one.answer))),
      h("h4", {}, "Completion"), h("pre", { class: "completion", tabindex: "0" }, completion(one, other)));
  }
}

function groupName(group) {
  const who = group.role ? `${group.role === "solve" ? "solve" : "propose"} ${group.task}` : "prompt";
  return `${who} ${group.key.split("/").at(-1)}: ${group.right} of ${group.size} right${group.low !== null && group.high > group.low ? "" : ", equal rewards"}`;
}

function verdict(one, proposal) {
  if (one.reward === null || one.failure) return ["unsure", "not judged"];
  if (one.is_correct) return ["right", proposal ? "valid and new" : "right"];
  if (one.is_cut) return ["wrong", "cut at the limit"];
  if (one.answer === null || !one.is_answered) return ["wrong", proposal ? "malformed" : "no answer"];
  return ["wrong", proposal ? "not a new valid task" : "wrong"];
}

/** The text, pale as far as both rollouts say the same, so that the eye finds where they part. */
function completion(one, other) {
  const text = one.pieces.map((piece) => piece[1]).join(""), theirs = other ? other.pieces.map((piece) => piece[1]).join("") : "";
  let same = 0;
  if (other !== one) while (same < text.length && text[same] === theirs[same]) same++;
  let at = 0;
  return one.pieces.map(([own, piece]) => {
    const shared = Math.max(0, Math.min(piece.length, same - at));
    at += piece.length;
    const parts = [shared ? h("span", { class: "same" }, visible(piece.slice(0, shared))) : null, visible(piece.slice(shared))];
    return own ? h("span", {}, parts) : h("span", { class: "environment", title: "the environment said this" }, parts);
  });
}

