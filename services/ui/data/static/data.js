// Data sets and their episodes: filters act at once; a check runs with its progress.
import { filters } from "../site/filters.js";
import { followAction, post } from "../site/live.js";

const form = document.querySelector("#filters"), rows = document.querySelector("#rows");
const name = rows.dataset.set, check = document.querySelector("#check [data-do]");
filters(form, rows, name ? `${name}/rows` : "data/rows");

async function follow() {
  const ended = await followAction(`${name}/action`, document.querySelector("#action"));
  if (ended) location.reload();
}

check?.addEventListener("click", async () => {
  check.disabled = true;
  if (await post(`${name}/check`)) await follow();
  check.disabled = false;
});
