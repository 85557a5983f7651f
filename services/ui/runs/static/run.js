// A run's page: drawn again whenever the run changes. Logged-in users resume and delete it.
import { confirmed, draw, post } from "../site/live.js";
import { say } from "../site/texts.js";

const POLL_MS = 1000;
const box = document.querySelector("#run"), name = box.dataset.run, lost = document.querySelector("#lost");
const state = () => document.querySelector("#standing").dataset.state;
const videos = () => new URLSearchParams(new FormData(document.querySelector("#video-filters") ?? undefined));
const show = () => draw(`${name}/state?${videos()}`, box);

function watch() {
  const events = new EventSource(`${name}/events`);
  events.onopen = () => { lost.hidden = true; };
  events.onmessage = show;
  events.addEventListener("end", () => { events.close(); show(); });
  events.addEventListener("gone", () => { events.close(); lost.hidden = false; });
  events.onerror = () => { lost.hidden = false; }; // the browser tries again by itself
}

// Shows the output of a resumed evaluation until it runs or has failed.
async function followAction() {
  const action = await (await fetch(`${name}/action`)).json().catch(() => ({}));
  const card = document.querySelector("#action");
  if (action.what) {
    card.hidden = state() === "running" && !action.code;
    card.firstElementChild.textContent = action.output || "…";
  }
  await show();
  if (action.what && action.ended === null) setTimeout(followAction, POLL_MS);
}

box.addEventListener("change", ({ target }) => { if (target.closest("#video-filters")) show(); });
box.addEventListener("click", async ({ target }) => {
  const what = target.dataset.act;
  if (!what || !(await confirmed(say(`${what}_sure`, { name }), target.textContent))) return;
  target.disabled = true;
  const done = await post(`${name}/${what}`);
  target.disabled = false;
  if (done && what === "delete") location.href = "../runs";
  if (done && what === "resume") followAction();
});
if (state() !== "complete") watch();
