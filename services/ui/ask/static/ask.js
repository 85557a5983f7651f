// The form that asks policies: what it has fields for follows the policies, at which it looks every few seconds.
import { say } from "../site/texts.js";

const LOOK_EVERY_MS = 3000;
const HERE = location.pathname;
const HTML = { accept: "text/html" };
const $ = (selector, root = document) => root.querySelector(selector);
const form = $("#form"), fields = form.elements;
const files = {};  // what was chosen for each field of a picture
const drawn = {};  // what each part of the page was drawn from
let policy = { ready: false, libero_keys: [] };
let key = "";  // also an example's suite, by which a key is chosen once the policy is there

const changed = (name, value) => drawn[name] !== (drawn[name] = JSON.stringify(value));
const policies = () => [...form.querySelectorAll("#policies input:checked")].map((box) => box.value);

// --- what the policies are ------------------------------------------------------------------------------------

async function look(example = "") {
  const query = new URLSearchParams([
    ...policies().map((name) => ["policies", name]), ["key", key], ["state", fields.state.value], ["example", example],
  ]);
  let shown;
  try {
    const answer = await fetch(`${HERE}look?${query}`);
    if (answer.status === 401) return location.reload();
    shown = await answer.json();
  } catch {
    $("#lost").hidden = false;
    return;
  }
  $("#lost").hidden = true;
  if (changed("policies", shown.policies)) offer(shown.policies);
  if (changed("policy", shown.policy)) become(shown.policy, shown.key);
  else if (example) choose(shown.key);
  if (changed("needs", shown.needs)) need(shown.needs, shown.state);
  if (!example) return;
  fields.state.value = shown.state;
  const further = [...form.querySelectorAll(".picture")].slice(1);
  for (const [number, box] of further.entries()) await take(box, shown.example[number]);
}

function offer(names) {
  const before = policies();
  $("#policies").hidden = names.length < 2;
  $("#policies div").replaceChildren(...names.map((name) => {
    const label = document.createElement("label"), box = document.createElement("input");
    Object.assign(box, { type: "checkbox", name: "policies", value: name, checked: before.includes(name) });
    label.append(box, name);
    return label;
  }));
}

function become(next, chosen) {
  policy = next;
  $("#policy").innerHTML = policy.banner;
  $("#identity").innerHTML = policy.identity;
  $("#ask").disabled = !policy.ready;
  $("#audit").hidden = !policy.ready;
  $("#audit code").textContent = `./lab audit ${policy.name}`;
  showAudit();
  $("#unnorm-key").hidden = !policy.keys.length;
  $("#as-libero").hidden = !policy.libero;
  fields.unnorm_key.replaceChildren(...["", ...policy.keys].map((name) => new Option(name || "–", name)));
  choose(chosen);
}

function choose(chosen) {
  key = chosen ?? "";
  fields.unnorm_key.value = key;
  fields.as_libero.checked = policy.libero && (!key || policy.libero_keys.includes(key));
}

function need({ pictures, state }, filled) {
  for (const [number, box] of [...form.querySelectorAll(".picture")].entries()) {
    box.hidden = number > 0 && !pictures[number];
    $("span", box).textContent = pictures[number] ? `${say("picture")}: ${pictures[number]}` : say("picture");
  }
  $("#state").hidden = !state;
  $("#state small").textContent = state;
  fields.state.value = filled;
}

// --- pictures -------------------------------------------------------------------------------------------------

// Puts a file, or what an address holds, into a field, and shows it there; null empties it.
async function take(box, file, shown = null) {
  if (typeof file === "string") file = await (await fetch(file)).blob();
  const image = $("img", box), button = $("button", box);
  if (image.src) URL.revokeObjectURL(image.src);
  files[box.id] = file;
  image.hidden = button.hidden = !file;
  image.removeAttribute("src");
  $("input", box).value = "";
  if (file) image.src = URL.createObjectURL(shown ?? file);
}

// Takes what a user uploads, once the site has looked at it: it says what cannot be used, and draws a TIFF.
async function upload(box, file) {
  const told = $("#picture-said");
  told.replaceChildren();
  if (!file) return;
  if (file.size > Number(form.dataset.max)) {
    told.innerHTML = '<p class="said bad" role="alert"></p>';
    told.firstChild.textContent = say("too_large", { size: (file.size / 2 ** 20).toFixed(1), most: form.dataset.max / 2 ** 20 });
    return take(box, null);
  }
  const body = new FormData();
  body.append("picture", file);
  try {
    const answer = await fetch(`${HERE}picture`, { method: "POST", body, headers: HTML });
    if (!answer.ok) told.innerHTML = await answer.text();
    await take(box, answer.ok ? file : null, answer.status === 200 ? await answer.blob() : null);
  } catch {
    $("#lost").hidden = false;
  }
}

for (const box of form.querySelectorAll(".picture")) {
  $("input", box).addEventListener("change", ({ target }) => upload(box, target.files[0]));
  $("button", box).addEventListener("click", () => (take(box, null), $("#picture-said").replaceChildren()));
  box.addEventListener("dragover", (event) => event.preventDefault());
  box.addEventListener("drop", (event) => (event.preventDefault(), upload(box, event.dataTransfer.files[0])));
}
addEventListener("paste", ({ clipboardData }) => upload($(".picture"), clipboardData.files[0]));

// --- asking ---------------------------------------------------------------------------------------------------

async function ask(event) {
  event.preventDefault();
  if ($("#ask").disabled) return;
  $("#ask").disabled = true;
  const body = new FormData(form);
  for (const box of form.querySelectorAll(".picture:not([hidden])")) if (files[box.id]) body.append(box.id, files[box.id]);
  try {
    const answer = await fetch(`${HERE}act`, { method: "POST", body, headers: HTML });
    if (answer.status === 401) return location.reload();
    $("#numbers").innerHTML = await answer.text();
    $("#copy")?.addEventListener("click", () => navigator.clipboard.writeText($("#raw textarea").value));
  } catch {
    $("#lost").hidden = false;
  } finally {
    $("#ask").disabled = !policy.ready;
  }
}

// --- the audit, which the control daemon runs ----------------------------------------------------------------

const SERVICES = `${HERE}../services`;
let following;

// Shows the policy's last audit that was started on this site, and follows it while it runs.
async function showAudit() {
  clearTimeout(following);
  const name = policy.name, page = document.createElement("template"), place = $("#audit div");
  page.innerHTML = await (await fetch(`${SERVICES}/state`)).text();
  const last = $(`details[data-what=audit][id^="done-${CSS.escape(name)}-"]`, page.content);
  if (name !== policy.name) return;
  place.replaceChildren(...(last ? [last] : []));
  if (!last) return;
  last.open = true;
  if (!last.dataset.code) following = setTimeout(showAudit, LOOK_EVERY_MS);
  const found = last.textContent.match(/logs\/audit\/([\w.-]+)\/audit\.html/);
  if (found) place.append(Object.assign(document.createElement("a"), { href: `${HERE}audit/${found[1]}`, textContent: say("audit_page") }));
}

$("#audit button").addEventListener("click", async () => {
  const answer = await fetch(`${SERVICES}/${encodeURIComponent(policy.name)}/audit`, { method: "POST" });
  if (answer.ok) return showAudit();
  $("#audit div").innerHTML = '<p class="said wait" role="alert"></p>';
  $("#audit div p").textContent = (await answer.json()).detail;
});

form.addEventListener("submit", ask);
fields.unnorm_key.addEventListener("change", ({ target }) => choose(target.value));
$("#policies").addEventListener("change", () => look());
$("#refresh").addEventListener("click", () => look());
for (const button of form.querySelectorAll("#examples button")) button.addEventListener("click", async () => {
  fields.instruction.value = button.title;
  $("#picture-said").replaceChildren();
  await take($(".picture"), $("img", button).src);
  await look(button.title);
});
setInterval(() => document.hidden || look(), LOOK_EVERY_MS);
look();
