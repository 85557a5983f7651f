// The lab, drawn anew every few seconds while somebody looks; the server has escaped all that it sends as HTML.
import { say } from "../site/texts.js";

const EVERY_MS = 4000, SOON_MS = 1000, LOG_MS = 3000, LONGEST_MS = 60000; // an answer takes 40 s at most
const at = (selector) => document.querySelector(selector);
const lost = at("#lost"), refused = at("#refused"), log = at("#log"), logText = at("#log-text");
let timer, followed;

// Puts in what has changed, part by part: what is open, scrolled or in use stays as it is.
function put(place, html) {
  const fresh = document.createElement("template"), focus = document.activeElement?.id;
  fresh.innerHTML = html;
  for (const part of fresh.content.querySelectorAll("details[id]")) {
    const old = place.querySelector(`#${CSS.escape(part.id)}`);
    if (old && old.dataset.code === part.dataset.code) part.open = old.open;
  }
  const names = (tree) => [...tree.querySelectorAll("tr[id], section[id], #notice")].map((one) => one.id);
  const same = names(place).join() === names(fresh.content).join() && columns(place) === columns(fresh.content);
  if (!same) place.replaceChildren(fresh.content);
  else for (const id of names(place)) {
    const old = document.getElementById(id), part = fresh.content.getElementById(id);
    if (old.outerHTML !== part.outerHTML) old.replaceWith(part);
  }
  if (focus && document.activeElement?.id !== focus) (document.getElementById(focus) ?? document.getElementById(focus.replace(/^do-/, "log-")))?.focus();
}
const columns = (tree) => tree.querySelectorAll("thead th").length;

// Returns the answer. One that never comes is given up, or the page would stay for good as it was.
const asked = (path, method = "GET") => fetch(path, { method, signal: AbortSignal.timeout(LONGEST_MS) });

async function draw(path, place) {
  const answer = await asked(path);
  if (answer.ok) put(place, await answer.text());
  lost.hidden = answer.ok;
}

async function refresh() {
  clearTimeout(timer);
  try {
    if (!document.hidden) await draw("lab/state", at("#state"));
    if (!document.hidden && at("#doctor-card")?.dataset.running !== "") await drawDoctor();
  } catch {
    lost.hidden = false;
  }
  clearTimeout(timer);
  timer = setTimeout(refresh, at("details[data-code='']") ? SOON_MS : EVERY_MS);
}

async function drawDoctor() {
  await draw("lab/doctor", at("#doctor"));
  for (const one of document.querySelectorAll("time[data-at]")) one.textContent = new Date(1000 * one.dataset.at).toLocaleTimeString(document.documentElement.lang);
}

// Returns the JSON of an answer; says on the page why there is none.
async function ask(path, method = "GET") {
  let why;
  try {
    const answer = await asked(path, method), told = await answer.json();
    if (answer.ok) return told;
    why = told.detail;
  } catch {
    why = say("lost");
  }
  refused.textContent = why;
  refused.hidden = false;
}

async function follow() {
  const name = followed;
  if (!name || document.hidden) return;
  const told = await ask(`lab/services/${encodeURIComponent(name)}/log`);
  if (name !== followed || !told || told.log === logText.textContent) return;
  const below = logText.scrollHeight - logText.scrollTop - logText.clientHeight < 8;
  logText.textContent = told.log;
  if (below) logText.scrollTop = logText.scrollHeight;
}

function openLog(name) {
  followed = name;
  at("#log-title").textContent = say("log_of", { name });
  logText.textContent = "…";
  log.hidden = false;
  logText.focus();
  log.scrollIntoView({ block: "nearest" });
  follow();
}

document.querySelector("main").addEventListener("click", async ({ target }) => {
  const button = target.closest("button");
  if (!button || button.getAttribute("aria-disabled")) return;
  refused.hidden = true;
  if (button.dataset.log) return openLog(button.dataset.log);
  if (button.id === "log-close") {
    at(`#log-${CSS.escape(followed)}`)?.focus();
    [followed, log.hidden] = [undefined, true];
  } else if (button.id === "examine") {
    if (await ask("lab/doctor", "POST")) await drawDoctor();
  } else if (button.dataset.do) {
    await ask(`lab/services/${encodeURIComponent(button.dataset.service)}/${button.dataset.do}`, "POST");
    await refresh();
  }
});
setInterval(follow, LOG_MS);
drawDoctor().finally(refresh);
