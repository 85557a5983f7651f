// One player for all films of the page. Without this script every film keeps the browser's own controls.
const player = document.getElementById("player"), film = player.querySelector("video");
const control = name => player.querySelector(`[name=${name}]`), at = control("at"), rates = [...player.querySelectorAll("[name=rate]")];
const clips = [...document.querySelectorAll(".clip")].filter(clip => clip.querySelector("video"));
const HZ = 20, SECOND = 1; // steps of the robot per second of film at 1×
let current = 0;

function show(index) {
  current = index;
  const clip = clips[index], from = clip.querySelector("video");
  player.classList.toggle("bad", clip.classList.contains("bad"));
  player.querySelector("h2").textContent = clip.querySelector(".what").textContent;
  player.querySelector(".player-how").innerHTML = clip.querySelector(".how").innerHTML;
  player.querySelector(".player-gone").hidden = true;
  film.poster = from.poster;
  film.src = from.getAttribute("src");
  control("previous").disabled = index === 0;
  control("next").disabled = index === clips.length - 1;
  film.play().catch(() => {}); // a film that is gone is told by its own event
  said();
}

function said() {
  const steps = +clips[current].dataset.steps, step = Math.min(steps, Math.round(film.currentTime * HZ));
  at.max = film.duration || 1;
  at.value = film.currentTime;
  const words = `step ${step} of ${steps}`;
  if (player.querySelector("output").textContent !== words) player.querySelector("output").textContent = words;
  at.setAttribute("aria-valuetext", words);
  control("play").textContent = film.ended ? "Play again" : film.paused ? "Play" : "Pause";
}

function seek(to) { film.currentTime = Math.max(0, Math.min(to, film.duration || 0)); }
function turn() { if (film.paused || film.ended) film.play().catch(() => {}); else film.pause(); }
function step(by) { if (clips[current + by]) show(current + by); }
function speed(value) {
  film.defaultPlaybackRate = film.playbackRate = value;
  for (const button of rates) button.setAttribute("aria-pressed", +button.value === value);
}
function faster(by) {
  const values = rates.map(button => +button.value);
  speed(values[Math.max(0, Math.min(values.indexOf(film.playbackRate) + by, values.length - 1))]);
}

const KEYS = {
  " ": turn, ArrowLeft: () => seek(film.currentTime - SECOND), ArrowRight: () => seek(film.currentTime + SECOND),
  ArrowUp: () => faster(1), ArrowDown: () => faster(-1), n: () => step(1), p: () => step(-1),
};
player.addEventListener("keydown", event => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey || (event.key === " " && event.target.localName === "button")) return;
  event.preventDefault();
  act();
});
player.addEventListener("close", () => { film.removeAttribute("src"); film.load(); });
player.addEventListener("click", event => { if (event.target === player) player.close(); }); // beside it, on the backdrop
film.addEventListener("error", () => { if (film.getAttribute("src")) player.querySelector(".player-gone").hidden = false; });
for (const name of ["timeupdate", "seeked", "play", "pause", "ended", "loadedmetadata"]) film.addEventListener(name, said);
film.addEventListener("click", turn);
at.addEventListener("input", () => seek(+at.value));
control("play").onclick = turn;
control("previous").onclick = () => step(-1);
control("next").onclick = () => step(1);
control("close").onclick = () => player.close();
for (const button of rates) button.onclick = () => speed(+button.value);
clips.forEach((clip, index) => {
  const button = clip.querySelector(".watch"), shown = clip.querySelector("video");
  shown.controls = false;
  shown.tabIndex = -1;
  button.hidden = false;
  button.onclick = () => { player.showModal(); show(index); };
});
