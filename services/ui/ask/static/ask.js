// The form that asks policies. The server draws it again every few seconds, as it follows what they need.
import { followAction, follow, post } from "../site/live.js";
import { say } from "../site/texts.js";

const LOOK_EVERY_MS = 3000, FRAME = "vlalab-frame";
const $ = (selector, root = document) => root.querySelector(selector);
const asked = $("#asked"), fields = $("#form").elements;
const files = {}; // what was chosen for each field of a picture
const needs = () => JSON.stringify([$("#audit").dataset.policy, $("#form").dataset.key, fields.unnorm_key.innerHTML]);
let key = $("#form").dataset.key, example = "", drawn = needs(), isAsking = false;

// --- what the policies need -----------------------------------------------------------------------------------

const boxes = () => [...asked.querySelectorAll("#policies input")];
let isChosen = boxes().some((box) => box.checked !== box.defaultChecked); // before this script came
const chosen = () => (isChosen ? boxes().filter((box) => box.checked).map((box) => ["policies", box.value]) : []);
const path = () => `state?${new URLSearchParams([...chosen(), ["key", key], ["state", fields.state.value], ["example", example]])}`;

// Gives the fields the values that the server has for them, where the policies or the example have changed.
function fill() {
  if (example) for (const box of asked.querySelectorAll(".picture[data-example]")) take(box, box.dataset.example);
  example = "";
  key = $("#form").dataset.key;
  if (drawn !== (drawn = needs())) {
    fields.unnorm_key.value = key;
    fields.as_libero.checked = fields.as_libero.defaultChecked;
  }
  if (document.activeElement !== fields.state) fields.state.value = fields.state.defaultValue;
  takeFrame();
  if (isAsking) $("#ask").disabled = true;
}

const look = follow(path, asked, () => LOOK_EVERY_MS, fill);

// --- pictures -------------------------------------------------------------------------------------------------

function refuse(words) {
  $("#picture-said").innerHTML = words ? '<p class="said bad" role="alert"></p>' : "";
  if (words) $("#picture-said p").textContent = words;
}

// Puts a file, or what an address holds, into a field, and shows it there; null empties it.
async function take(box, file) {
  if (typeof file === "string") file = await (await fetch(file)).blob();
  const image = $("img", box), button = $("button", box);
  if (image.src) URL.revokeObjectURL(image.src);
  files[box.id] = file;
  image.hidden = button.hidden = !file;
  image.removeAttribute("src");
  $("input", box).value = "";
  if (!file) return;
  image.onerror = () => { take(box, null); refuse(say("not_an_image")); };
  image.src = URL.createObjectURL(file);
}

function upload(box, file) {
  const most = Number($("#form").dataset.max);
  if (!file) return;
  refuse(file.size > most ? say("too_large", { size: (file.size / 2 ** 20).toFixed(1), most: most / 2 ** 20 }) : "");
  take(box, file.size > most ? null : file);
}

// A frame that the simulator's page has left here: its pictures by camera, and the instruction.
function takeFrame() {
  const left = JSON.parse(sessionStorage.getItem(FRAME) ?? "null");
  if (!left || $("#ask").disabled) return; // which cameras are needed is known once the policy is there
  sessionStorage.removeItem(FRAME);
  const places = [...asked.querySelectorAll(".picture")];
  for (const [camera, picture] of Object.entries(left.pictures)) {
    const bytes = Uint8Array.from(atob(picture.split(",")[1]), (char) => char.charCodeAt(0));
    const box = places.find((one) => one.dataset.camera.split(", ").includes(camera)) ?? (camera === left.first ? places[0] : null);
    if (box) take(box, new Blob([bytes], { type: "image/png" }));
  }
  fields.instruction.value = left.instruction;
  if (!$("#state").hidden) refuse(say("no_state"));
}

asked.addEventListener("dragover", (event) => event.target.closest(".picture") && event.preventDefault());
asked.addEventListener("drop", (event) => {
  const box = event.target.closest(".picture");
  if (!box) return;
  event.preventDefault();
  upload(box, event.dataTransfer.files[0]);
});
addEventListener("paste", ({ clipboardData }) => upload($(".picture"), clipboardData.files[0]));

// --- asking, and the audit ------------------------------------------------------------------------------------

async function ask() {
  if ($("#ask").disabled) return;
  isAsking = $("#ask").disabled = true;
  $("#numbers").setAttribute("aria-busy", "true");
  const body = new FormData($("#form"));
  for (const { id } of asked.querySelectorAll(".picture")) if (files[id]) body.append(id, files[id]);
  try {
    const answer = await fetch("act", { method: "POST", body, headers: { accept: "text/html" } });
    if (answer.status === 401) return location.reload();
    $("#numbers").innerHTML = await answer.text();
  } catch {
    $("#lost").hidden = false;
  }
  isAsking = $("#ask").disabled = false;
  $("#numbers").removeAttribute("aria-busy");
}

async function showAudit(name) {
  const card = $("#action"), service = `../services/${encodeURIComponent(name)}`;
  await followAction(`${service}/action`, card);
  const found = card.textContent.match(/logs\/audit\/([\w.-]+)\/audit\.html/);
  if (found) $("p", card).replaceChildren(Object.assign(document.createElement("a"), { href: `audit/${found[1]}?language=${document.documentElement.lang}`, textContent: say("audit_page") }));
}

asked.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
asked.addEventListener("change", ({ target }) => {
  if (target.type === "file") upload(target.closest(".picture"), target.files[0]);
  if (target === fields.unnorm_key) {
    key = target.value;
    look();
  }
  if (target.name !== "policies") return;
  isChosen = true;
  look();
});
asked.addEventListener("click", async ({ target }) => {
  const button = target.closest("button"), box = button?.closest(".picture");
  if (box) {
    take(box, null);
    refuse("");
  } else if (button?.closest("#examples")) {
    fields.instruction.value = example = button.title;
    $("#ask").disabled = true; // until the server has drawn the form with the example's key and state
    refuse("");
    await take($(".picture"), $("img", button).src);
    look();
  } else if (button?.closest("#audit")) {
    const { policy } = $("#audit").dataset;
    if (await post(`../services/${encodeURIComponent(policy)}/audit`)) showAudit(policy);
  } else if (button?.id === "copy") {
    navigator.clipboard.writeText($("#raw textarea").value);
  }
});
for (const box of asked.querySelectorAll(".picture")) upload(box, $("input", box).files[0]); // chosen before this script came
look();
