// The dashboard, drawn again every few seconds while somebody looks; and the first evaluation of an empty lab.
import { follow, post } from "../site/live.js";

const EVERY_MS = 4000, RUNNING_MS = 2000;
const home = document.querySelector("#home");
const again = follow(() => "home/state", home, () => (document.querySelector("#running") ? RUNNING_MS : EVERY_MS));

home.addEventListener("click", async ({ target }) => {
  if (target.id !== "first") return;
  target.disabled = true;
  if (await post("runs/first")) target.textContent += " …";
  else target.disabled = false;
});
again();
