// Parts of a page that stay up to date: the server renders them again, and only what differs is changed.

// Gives `old` the content of `fresh`: open details, videos, fields and the focus stay where they are.
export function morph(old, fresh) {
  if (old.isEqualNode(fresh) || old.dataset?.keep !== undefined) return; // data-keep: a script's
  if (old.nodeName !== fresh.nodeName || (old.id ?? "") !== (fresh.id ?? "")) return old.replaceWith(fresh);
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.data = fresh.data;
    return;
  }
  const opened = old.nodeName === "DETAILS" && old.dataset.code === fresh.dataset.code ? old.open : fresh.hasAttribute("open");
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.nodeName === "DETAILS") old.open = opened;
  const named = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  const kept = new Set([...fresh.children].map((child) => child.id));
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    while (at?.id && !kept.has(at.id)) at = [at.nextSibling, at.remove()][0];
    const same = child.id ? named.get(child.id) : at?.id ? null : at;
    if (!same) {
      old.insertBefore(child, at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else old.insertBefore(same, at);
    morph(same, child);
  }
  while (at) at = [at.nextSibling, at.remove()][0];
}

const ACTION_MS = 1000;
const TIMEOUT_MS = 60000; // a status takes 40 s at most
const lost = document.querySelector("#lost");

// Shows what the server renders at `path` in the element; returns whether it came. Its HTML is escaped by the server.
export async function draw(path, element) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS) }).catch(() => null);
  if (answer?.ok) {
    const fresh = element.cloneNode(false);
    fresh.innerHTML = await answer.text();
    morph(element, fresh);
  }
  lost.hidden = answer?.ok ?? false;
  return answer?.ok ?? false;
}

// Draws again and again while somebody looks. every: ms until the next time, asked after each. after: called when it came.
export function follow(path, element, every, after = () => {}) {
  let timer, isDrawing = false, isStale = false;
  async function again() {
    clearTimeout(timer);
    isStale = isDrawing;
    if (isDrawing) return; // what is being drawn may be old: it is drawn once more
    isDrawing = true;
    do {
      isStale = false;
      if (!document.hidden && await draw(path(), element) && !isStale) after();
    } while (isStale);
    isDrawing = false;
    timer = setTimeout(again, every());
  }
  document.addEventListener("visibilitychange", () => document.hidden || again());
  timer = setTimeout(again, every());
  return again;
}

// Sends a POST; returns the JSON of its answer, or shows why there is none.
export async function post(path) {
  const refused = document.querySelector("#refused");
  refused.hidden = true;
  const answer = await fetch(path, { method: "POST", signal: AbortSignal.timeout(3 * TIMEOUT_MS) }).catch(() => null);
  const body = await answer?.json().catch(() => null);
  if (answer?.ok) return body;
  refused.textContent = body?.detail ?? lost.textContent;
  refused.hidden = false;
  return null;
}

// Returns whether the person agrees. action: the word on the button that does it.
export function confirmed(question, action) {
  const dialog = document.querySelector("#confirm");
  dialog.querySelector("p").textContent = question;
  dialog.querySelector("[value=yes]").textContent = action;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((decide) => dialog.addEventListener("close", () => decide(dialog.returnValue === "yes"), { once: true }));
}

// Shows in `card` what a started action prints, with its progress ("3 of 10"), until it has ended; returns whether it did.
export async function followAction(path, card) {
  const output = card.querySelector("pre"), bar = card.querySelector("progress");
  for (;;) {
    const action = await (await fetch(path).catch(() => null))?.json().catch(() => null);
    if (!action?.what) return false;
    card.hidden = false;
    output.textContent = action.output || "…";
    const [, done, of] = action.output.match(/(\d+) of (\d+)(?![^]*\d of \d)/) ?? [];
    if (bar && of) Object.assign(bar, { max: Number(of), value: Number(done) });
    if (action.ended !== null) return true;
    await new Promise((next) => setTimeout(next, ACTION_MS));
  }
}
