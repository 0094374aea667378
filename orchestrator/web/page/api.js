// Questions to the server. A sleeping phone, a server that was restarted and a lost network are all the same here:
// the next question is asked again a little later, and the page says how old its facts are.

export class Refused extends Error {
  constructor(status, said) {
    super(said.what || `the server said ${status}`);
    this.status = status;
    this.said = said;
  }
}

const PATIENCE_MS = 15000;

export async function ask(name, given = {}, signal = undefined) {
  const words = new URLSearchParams(Object.entries(given).filter(([, value]) => value !== "" && value !== undefined));
  const limit = AbortSignal.timeout(PATIENCE_MS);
  const response = await fetch(`api/${name}?${words}`, {
    signal: signal ? AbortSignal.any([signal, limit]) : limit, credentials: "same-origin", cache: "no-store",
  });
  const said = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, said);
  return said;
}

/** Calls `work` again and again while the page is seen; at once when it is seen again. work returns the pause in ms. */
export class Pulse {
  constructor(work, failed) {
    this.work = work;
    this.failed = failed;
    this.failures = 0;
    this.timer = 0;
    this.busy = false;
    this.again = false;
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.now(); });
    addEventListener("online", () => this.now());
    addEventListener("pageshow", (event) => { if (event.persisted) this.now(); });
  }

  async now() {
    clearTimeout(this.timer);
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    let pause = 2000;
    try {
      pause = await this.work();
      this.failures = 0;
    } catch (error) {
      if (error.name !== "AbortError") {
        this.failures += 1;
        this.failed(error);
      }
      pause = Math.min(15000, 1000 * 2 ** Math.min(4, this.failures));
    }
    this.busy = false;
    if (this.again) { this.again = false; this.now(); return; }
    if (!document.hidden) this.timer = setTimeout(() => this.now(), pause);
  }
}
