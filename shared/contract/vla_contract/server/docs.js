"use strict";
const field = (name) => document.getElementById(name);

/* Returns the file as json_numpy has an array: uint8 [H, W, 4], of the policy's size where it takes only one. */
async function pixels(file, info) {
  const bitmap = await createImageBitmap(file), shrink = Math.min(1, 1024 / Math.max(bitmap.width, bitmap.height));
  const [height, width] = info.image_hw || [bitmap.height, bitmap.width].map((side) => Math.ceil(side * shrink));
  const canvas = Object.assign(document.createElement("canvas"), { width, height }), brush = canvas.getContext("2d");
  brush.drawImage(bitmap, 0, 0, width, height);
  let text = "";
  for (const level of brush.getImageData(0, 0, width, height).data) text += String.fromCharCode(level);
  return { __numpy__: btoa(text), dtype: "|u1", shape: [height, width, 4] };
}

/* Returns an action, float64 [n], with the names of its parts. */
function named(action, info) {
  const numbers = [...new Float64Array(Uint8Array.from(atob(action.__numpy__), (c) => c.charCodeAt(0)).buffer)];
  return info.action.map((part) => `${part.name}: ${numbers.splice(0, part.size).join(", ")}  (${part.unit}, ${part.convention})`);
}

async function ask(route, settings) {
  const headers = { "Content-Type": "application/json" };
  if (field("token")) headers.Authorization = `Bearer ${field("token").value}`;
  const answer = await fetch(route, { ...settings, headers }), value = await answer.json();
  if (!answer.ok) throw new Error(`${answer.status} ${value.title}: ${value.detail}`);
  return value;
}

field("try").addEventListener("submit", async (event) => {
  event.preventDefault();
  field("answer").textContent = "asking …";
  try {
    const info = await ask("v1/info"), body = { instruction: field("instruction").value };
    body.image = await pixels(field("picture").files[0], info);
    if (field("key").value) body.unnorm_key = field("key").value;
    const action = await ask("act", { method: "POST", body: JSON.stringify(body) });
    field("answer").textContent = named(action, info).join("\n");
  } catch (error) {
    field("answer").textContent = error.message;
  }
});
