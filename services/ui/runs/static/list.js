// The list of runs: filters act at once, running rows move, and two chosen runs can be compared.
import { filters } from "../site/filters.js";
import { follow } from "../site/live.js";
import { say } from "../site/texts.js";

const RUNNING_MS = 3000, QUIET_MS = 15000;
const form = document.querySelector("#filters"), rows = document.querySelector("#rows"), compare = document.querySelector("#compare");
const chosen = new Set(); // in the order of choosing: A, then B; a filter may hide them

function showChosen() {
  for (const box of rows.querySelectorAll("[data-choose]")) box.checked = chosen.has(box.dataset.choose);
  compare.disabled = chosen.size !== 2;
  compare.textContent = chosen.size === 2 ? say("compare_chosen", { a: [...chosen][0], b: [...chosen][1] }) : say("compare_two");
}

for (const box of rows.querySelectorAll("[data-choose]:checked")) chosen.add(box.dataset.choose); // before this script came
const { address, filter } = filters(form, rows, "runs/rows", showChosen);
rows.addEventListener("click", (event) => {
  const column = event.target.closest("a[data-sort]");
  if (!column) return;
  event.preventDefault();
  form.sort.value = column.dataset.sort;
  filter();
});
rows.addEventListener("change", ({ target }) => {
  if (target.checked) chosen.add(target.dataset.choose);
  else chosen.delete(target.dataset.choose);
  showChosen();
});
compare.addEventListener("click", () => {
  const [a, b] = chosen;
  location.href = `runs/compare?${new URLSearchParams({ a, b })}`;
});
follow(address, rows, () => (rows.querySelector("[data-state=running]") ? RUNNING_MS : QUIET_MS));
showChosen();
