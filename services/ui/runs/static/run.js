// A run's page: drawn again whenever the run changes. Logged-in users resume and delete it.
import { confirmed, follow, followAction, post } from "../site/live.js";
import { say } from "../site/texts.js";

const RUNNING_MS = 1500, QUIET_MS = 15000;
const box = document.querySelector("#run"), name = box.dataset.run, card = document.querySelector("#action");
const state = () => document.querySelector("#standing").dataset.state;
const videos = () => new URLSearchParams(new FormData(document.querySelector("#video-filters") ?? undefined));
const again = follow(() => `${name}/state?${videos()}`, box, () => (state() === "running" ? RUNNING_MS : QUIET_MS));

box.addEventListener("change", ({ target }) => { if (target.closest("#video-filters")) again(); });
box.addEventListener("click", async ({ target }) => {
  const what = target.dataset.act;
  if (!what || !(await confirmed(say(`${what}_sure`, { name }), target.textContent))) return;
  target.disabled = true;
  const done = await post(`${name}/${what}`);
  target.disabled = false;
  if (done && what === "delete") location.href = "../runs";
  if (done && what === "resume") await followAction(`${name}/action`, card);
  again();
});
