// The services, drawn again every few seconds while somebody looks; start and stop with the token, logs that follow.
import { confirmed, draw, follow, post } from "../site/live.js";
import { say } from "../site/texts.js";

const EVERY_MS = 4000, SOON_MS = 1000, LOG_MS = 3000;
const at = (selector) => document.querySelector(selector);
const log = at("#log"), logText = at("#log-text");
let followed;

const drawDoctor = () => draw("services/doctor", at("#doctor"));
const again = follow(() => "services/state", at("#state"), () => {
  if (at("#doctor-card")?.dataset.running) drawDoctor();
  return at("details[data-code='']") ? SOON_MS : EVERY_MS;
});

async function followLog() {
  const name = followed;
  if (!name || document.hidden) return;
  const answer = await fetch(`services/${encodeURIComponent(name)}/log`).catch(() => null);
  const text = (await answer?.json().catch(() => null))?.[answer.ok ? "log" : "detail"] ?? say("lost");
  if (name !== followed || text === logText.textContent) return;
  const below = logText.scrollHeight - logText.scrollTop - logText.clientHeight < 8;
  logText.textContent = text;
  if (below) logText.scrollTop = logText.scrollHeight;
}

function openLog(name) {
  followed = name;
  at("#log-title").textContent = say("log_of", { name });
  logText.textContent = "…";
  log.showModal();
  followLog();
}

async function copy(button) {
  // without TLS browsers lend the clipboard to this machine's own pages alone: then the address is selected
  if (navigator.clipboard) await navigator.clipboard.writeText(button.dataset.copy);
  else getSelection().selectAllChildren(button.previousElementSibling ?? button.parentElement);
  button.textContent = say(navigator.clipboard ? "copied" : "selected");
}

async function act(button, { service, do: verb, sure }) {
  if (!(await confirmed(sure, button.firstChild.textContent))) return;
  await post(`services/${encodeURIComponent(service)}/${verb}`);
  await again();
}

document.querySelector("main").addEventListener("click", async ({ target }) => {
  const button = target.closest("button");
  if (!button || button.getAttribute("aria-disabled")) return;
  if (button.dataset.copy) {
    await copy(button);
  } else if (button.dataset.log) {
    openLog(button.dataset.log);
  } else if (button.id === "examine") {
    if (await post("services/doctor")) await drawDoctor();
  } else if (button.dataset.do) {
    await act(button, button.dataset);
  }
});
log.addEventListener("close", () => { followed = undefined; });
setInterval(followLog, LOG_MS);
drawDoctor();
again();
