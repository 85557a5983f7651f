// The page of the simulator. It asks for the next news as soon as it has shown the last: so nothing is queued anywhere.
import { said as inWords, say } from "../site/texts.js";
import { Driving } from "./driving.js";
import { Traces } from "./traces.js";

const API = "simulator/api", KEPT = "vlalab-simulator", AGAIN_MS = 1000;
const $ = (selector) => document.querySelector(selector);
const about = JSON.parse($("#about").textContent);
const form = $("#opening"), instruction = $("#instruction");
const traces = new Traces($("#traces"), about.action);
let session = null, head = null, number = 0, actions = [], said = null;

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function post(path, body = {}) {
  const answer = await fetch(`${API}/${path}`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(inWords(found.detail ?? `status ${answer.status}`));
  return found;
}

function tell(command) {
  if (session) return post(`sessions/${session}/do`, command).catch((error) => note("bad", error.message));
}

const driving = new Driving((action) => tell({ do: "act", action }));

// --- what is said below the pictures ----------------------------------------------------------------------------

function note(kind, text, button = null) {
  const key = `${kind} ${text}`;
  if (said === key) return;
  said = key;
  const box = document.createElement("p");
  box.className = `said ${kind}`;
  if (kind === "bad") box.setAttribute("role", "alert");
  const words = document.createElement("span");
  words.textContent = text;
  box.append(words, ...(button ? [button] : []));
  $("#told").replaceChildren(...(text ? [box] : []));
}

function anew() {
  const button = document.createElement("button");
  button.id = "anew";
  button.textContent = say("anew");
  button.addEventListener("click", () => form.requestSubmit());
  return button;
}

// --- opening ----------------------------------------------------------------------------------------------------

function showTasks() {
  const chosen = about.suites[form.suite.value];
  const options = chosen.map((words, index) => new Option(`${index}. ${words}`, index));
  const sought = form.search.value.toLowerCase().split(/\s+/), before = form.task.value;
  const found = options.filter(({ text }) => sought.every((word) => text.toLowerCase().includes(word)));
  form.task.replaceChildren(...(found.length ? found : options));
  if (found.some(({ value }) => value === before)) form.task.value = before;
  form.search.setCustomValidity(found.length ? "" : say("no_task"));
}

async function showPolicies() {
  const answer = await fetch(`${API}/policies`).catch(() => null);
  if (!answer?.ok) return;
  for (const { name, ready } of (await answer.json()).policies) {
    const option = [...form.policy.options].find((one) => one.value === name);
    if (!option) continue;
    option.disabled = !ready;
    option.textContent = ready ? name : say("policy_down", { name });
  }
}

async function open(event) {
  event.preventDefault();
  const button = form.querySelector("button"), before = session;
  button.disabled = true;
  button.textContent = say("opening");
  session = null;
  if (before) await post(`sessions/${before}/do`, { do: "close" }).catch(() => {});
  const start = form.start.value === "init" ? { init: Number(form.init.value) } : null;
  const asked = { suite: form.suite.value, task: Number(form.task.value), policy: form.policy.value, start };
  await showPolicies();
  const chosen = form.policy.selectedOptions[0];
  try {
    if (chosen.disabled) throw new Error(chosen.textContent);
    const { id } = await post("sessions", asked);
    sessionStorage.setItem(KEPT, JSON.stringify({ id, asked }));
    follow(id);
    tell({ do: "speed", speed: Number($("#speed").value) });
    if (!asked.policy) $("#pad").focus();
  } catch (error) {
    note("bad", error.message, anew());
  }
  button.disabled = false;
  button.textContent = say("open");
}

// --- news -------------------------------------------------------------------------------------------------------

async function follow(id) {
  session = id;
  [head, number, actions] = [null, 0, []];
  note("", "");
  showEmpty(say("building"));
  while (session === id) {
    if (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
    const query = `after=${number}&episode=${head?.episode ?? 0}&have=${actions.length}`;
    const answer = await fetch(`${API}/sessions/${id}/frame?${query}`).catch(() => null);
    if (session !== id) return;
    if (answer?.status === 404) return over((await answer.json().catch(() => ({}))).detail ?? say("state_gone"));
    if (answer?.status === 401) return location.reload();
    const news = answer?.ok ? await answer.arrayBuffer().catch(() => null) : null;
    if (!news) {
      note("bad", say("lost"));
      await pause(AGAIN_MS);
      continue;
    }
    await take(news);
    if (head.state === "gone" || head.state === "failed") return over(head.reason);
  }
}

function showEmpty(text) {
  $("#empty").textContent = text;
  $("#empty").hidden = !$("#cameras").hidden;
}

function over(reason) {
  session = null;
  sessionStorage.removeItem(KEPT);
  showEmpty(say("empty"));
  showState(head?.state === "failed" ? "failed" : "gone");
  enable({});
  note("bad", inWords(reason), anew());
}

async function take(news) {
  const lengths = new DataView(news), headBytes = lengths.getUint32(0, true);
  const told = JSON.parse(new TextDecoder().decode(new Uint8Array(news, 8, headBytes)));
  actions = [...actions.slice(0, told.actions_from), ...told.actions];
  if (told.actions_from === 0) actions = told.actions;
  [head, number] = [told, told.number];
  await showPictures(told, news, 8 + headBytes);
  show();
}

async function showPictures(told, news, from) {
  let at = from;
  for (const [name, bytes] of Object.entries(told.pictures ?? {})) {
    const picture = await createImageBitmap(new Blob([new Uint8Array(news, at, bytes)], { type: "image/jpeg" }));
    at += bytes;
    const canvas = camera(name);
    if (canvas.width !== picture.width) [canvas.width, canvas.height] = [picture.width, picture.height];
    canvas.getContext("2d").drawImage(picture, 0, 0);
    canvas.dataset.rendered = told.rendered_ms;
    canvas.dataset.step = told.step;
    picture.close();
  }
}

function camera(name) {
  const there = $(`canvas[data-camera="${name}"]`);
  if (there) return there;
  const figure = document.createElement("figure"), canvas = document.createElement("canvas");
  const caption = document.createElement("figcaption");
  canvas.dataset.camera = caption.title = name;
  caption.textContent = name.includes("hand") ? say("camera_wrist") : name === "agentview" ? say("camera_front") : name;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", say("camera", { name }));
  figure.append(canvas, caption);
  $("#cameras").append(figure);
  $("#cameras").hidden = false;
  $("#empty").hidden = true;
  return canvas;
}

// --- showing ----------------------------------------------------------------------------------------------------

const KINDS = { running: "good", waiting: "wait", paused: "wait", trouble: "bad", failed: "bad", gone: "bad" };

function showState(state) {
  const tag = $("#state"), text = say(`state_${state}`);
  tag.className = `tag ${KINDS[state] ?? ""}`;
  tag.dataset.state = state;
  if (tag.textContent !== text) tag.textContent = text;
}

function enable(may) {
  for (const name of ["play", "step", "again", "next", "finish", "film", "keep"]) $(`#${name}`).disabled = !may[name];
  for (const one of [instruction, ...document.querySelectorAll("#words button")]) one.disabled = !may.words;
  for (const one of document.querySelectorAll("[name=driver]")) one.disabled = !may[one.value];
  driving.allow(may.drive ?? false);
  $("#ask-frame").disabled = $("#cameras").hidden;
}

function show() {
  if (!head.episode) return showState(head.state);  // its process has told nothing yet
  const { state, driver } = head, on = ["running", "paused", "trouble"].includes(state), ended = state === "ended";
  const waiting = state === "running" && driver === "person";
  showState(waiting ? "waiting" : state);
  enable({
    play: on && !waiting, step: on, again: on || ended, next: on || ended, finish: on, film: ended,
    keep: ended && !head.not_kept, words: on || ended, policy: on && head.policy, person: on, drive: on && driver === "person",
  });
  $("#play").textContent = say(state === "running" ? "pause" : "play");
  $("#play").dataset.do = state === "running" ? "pause" : "play";
  $("#keep").title = inWords(head.not_kept);
  for (const one of document.querySelectorAll("[name=driver]")) one.checked = one.value === driver;
  if (document.activeElement !== instruction) instruction.value = head.instruction;
  const other = head.instruction !== head.task_instruction;
  $("#other-words").hidden = !other;
  $("#other-words").textContent = other ? say("other_words", { task: head.task_instruction }) : "";
  $("#at-step").textContent = head.step;
  $("#max-steps").textContent = head.max_steps ? say("of", { steps: head.max_steps }) : "";
  $("#latency").textContent = head.policy_ms === null ? "–" : `${head.policy_ms.toFixed(0)} ms`;
  $("#hand").textContent = head.robot.length ? head.robot.slice(0, 3).map((at) => at.toFixed(3)).join("  ") : "–";
  traces.show(actions);
  showOutcome(state);
}

function showOutcome(state) {
  if (state === "trouble") return note("bad", `${inWords(head.reason)}. ${say("trouble_todo")}`);
  if (state === "ended" && head.kept) return note("good", say("kept", { name: head.kept }));
  if (state === "ended" && head.success) return note("good", say("solved", { step: head.step }));
  if (state === "ended") return note("wait", say("not_solved", { reason: inWords(head.reason) }));
  if (state !== "starting") note("", "");
}

// --- what a person does -----------------------------------------------------------------------------------------

async function saveFilm() {
  const button = $("#film");
  button.disabled = true;
  button.textContent = say("drawing");
  const answer = await fetch(`${API}/sessions/${session}/film`).catch(() => null);
  button.textContent = say("film");
  button.disabled = false;
  if (!answer?.ok) return note("bad", inWords((await answer?.json().catch(() => null))?.detail ?? say("lost")));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = `${head.task_instruction.replace(/\W+/g, "_")}.mp4`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  note("good", say("film_done"));
}

async function keep() {
  $("#keep").disabled = true;
  try {
    note("good", say("kept", { name: (await post(`sessions/${session}/keep`)).kept }));
  } catch (error) {
    note("bad", error.message);
    $("#keep").disabled = false;
  }
}

const instruct = (text) => {
  instruction.value = text || head.task_instruction;
  tell({ do: "instruct", instruction: text });
};

// Takes the cameras' last images and the instruction to the page Ask, in this tab.
function askFrame() {
  const cameras = [...document.querySelectorAll("#cameras canvas")];
  const pictures = Object.fromEntries(cameras.map((canvas) => [canvas.dataset.camera, canvas.toDataURL()]));
  const frame = { pictures, first: cameras[0].dataset.camera, instruction: instruction.value };
  sessionStorage.setItem("vlalab-frame", JSON.stringify(frame));
  location.href = "ask/";
}

form.addEventListener("submit", open);
form.suite.addEventListener("change", () => { form.search.value = ""; showTasks(); });
form.search.addEventListener("input", showTasks);
window.addEventListener("focus", showPolicies);
form.start.addEventListener("change", () => { form.init.parentElement.hidden = form.start.value !== "init"; });
$("#play").addEventListener("click", () => tell({ do: $("#play").dataset.do }));
$("#step").addEventListener("click", () => tell({ do: "step" }));
$("#finish").addEventListener("click", () => tell({ do: "finish" }));
$("#again").addEventListener("click", () => tell({ do: "reset" }));
$("#next").addEventListener("click", () => tell({ do: "reset", start: { drawn: Math.floor(Math.random() * 2 ** 31) } }));
$("#speed").addEventListener("change", () => tell({ do: "speed", speed: Number($("#speed").value) }));
$("#film").addEventListener("click", saveFilm);
$("#keep").addEventListener("click", keep);
$("#ask-frame").addEventListener("click", askFrame);
$("#words").addEventListener("submit", (event) => { event.preventDefault(); instruct(instruction.value); });
$("#own-words").addEventListener("click", () => instruct(""));
for (const one of document.querySelectorAll("[name=driver]")) {
  one.addEventListener("change", () => {
    tell({ do: "drive", driver: one.value });
    if (one.value === "person") $("#pad").focus();
  });
}

enable({});
showTasks();
showPolicies();
form.querySelector("button").disabled = false; // before this the browser itself would have sent the form
const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
if (kept) {
  for (const name of ["suite", "policy"]) form[name].value = kept.asked[name];
  showTasks();
  form.task.value = kept.asked.task;
  follow(kept.id);
}
