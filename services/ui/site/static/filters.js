// A form that filters at once: what the server finds for it is drawn in `rows`, from `path` with the form as its query.
import { draw } from "./live.js";

const TYPING_MS = 150;

export function filters(form, rows, path, after = () => {}) {
  const first = new URLSearchParams(location.search).get("from"); // the page of a long list, until the filters change
  let timer, moved = false;

  function query() {
    const fields = new URLSearchParams(new FormData(form));
    for (const [name, value] of [...fields]) if (!value) fields.delete(name);
    return fields;
  }

  function filter() {
    moved = true;
    clearTimeout(timer);
    timer = setTimeout(async () => {
      history.replaceState(null, "", `${location.pathname}?${query()}`);
      if (await draw(address(), rows)) after();
    }, TYPING_MS);
  }

  const address = () => `${path}?${query()}${first && !moved ? `&from=${first}` : ""}`;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => { event.preventDefault(); filter(); });
  if (form.q.value !== form.q.defaultValue) filter(); // typed before this script came
  return { address, filter };
}
