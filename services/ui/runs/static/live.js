// A run that is under way: its numbers move as they change. The page came with those of the moment; here they follow.
const place = document.querySelector("#standing"), lost = document.querySelector("#lost");

const percent = value => value === null ? "–" : `${(100 * value).toFixed(1)} %`;
const range = ({ done, interval: [low, high] }) => done ? `${(100 * low).toFixed(1)}–${(100 * high).toFixed(1)} %` : "";
const clock = seconds => {
  if (seconds === null) return "–";
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60) % 60, hours = Math.floor(whole / 3600);
  const two = number => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
};

function fill(within, figures) {
  for (const [name, text] of Object.entries(figures)) {
    const shown = within.querySelector(`[data-figure=${name}]`);
    if (shown && shown.textContent !== String(text)) shown.textContent = text;
  }
}

function draw(within, { planned, done, successes }) {
  const good = 100 * successes / Math.max(planned, 1), bad = 100 * (done - successes) / Math.max(planned, 1);
  const [fillBar, miss] = ["fill", "miss"].map(name => within.querySelector(`[data-bar] .${name}`));
  fillBar.setAttribute("width", good);
  miss.setAttribute("x", good);
  miss.setAttribute("width", bad);
}

function list(workers) {
  document.querySelector("#workers").replaceChildren(...Object.entries(workers).map(([name, status]) => {
    const line = document.createElement("li"), who = document.createElement("b");
    who.textContent = name;
    line.append(who, ` ${status}`);
    return line;
  }));
}

function show(run) {
  fill(place, {
    rate: percent(run.rate), interval: range(run), done: run.done, steps_per_s: run.steps_per_s.toFixed(0), left: clock(run.left_s),
    seconds: clock(run.seconds), workers: Object.keys(run.workers).length, faults: run.fault_count, policy_errors: run.policy_errors,
  });
  draw(place, run);
  list(run.workers);
  for (const task of run.tasks) {
    const row = document.querySelector(`tr[data-task="${task.task}"]`);
    if (!row) continue;
    fill(row, { rate: percent(task.rate), interval: range(task), done: task.done });
    draw(row, task);
  }
}

function watch() {
  const events = new EventSource(`${place.dataset.run}/events`);
  events.onopen = () => { lost.hidden = true; };
  events.onmessage = ({ data }) => {
    lost.hidden = true;
    const run = JSON.parse(data);
    if (run.state === place.dataset.state) return show(run);
    events.close();
    location.reload(); // it has ended, or goes on: the whole page says other things then
  };
  events.addEventListener("end", () => events.close());
  events.addEventListener("gone", () => { events.close(); lost.hidden = false; });
  events.onerror = () => { lost.hidden = false; }; // the browser tries again by itself
}

if (place.dataset.state !== "complete") watch();
