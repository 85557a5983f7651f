// One player for all videos of the page. Without this script every video has the browser's controls.
const player = document.getElementById("player"), video = player.querySelector("video");
const control = name => player.querySelector(`[name=${name}]`), at = control("at"), rates = [...player.querySelectorAll("[name=rate]")];
const clips = [...document.querySelectorAll(".clip")].filter(clip => clip.querySelector("video"));
const HZ = 20, SECOND = 1; // steps of the robot per second of video at 1×
let current = 0;

function show(index) {
  current = index;
  const clip = clips[index], from = clip.querySelector("video");
  player.classList.toggle("bad", clip.classList.contains("bad"));
  player.querySelector("h2").textContent = clip.querySelector(".what").textContent;
  player.querySelector(".player-how").innerHTML = clip.querySelector(".how").innerHTML;
  player.querySelector(".player-gone").hidden = true;
  video.poster = from.poster;
  video.src = from.getAttribute("src");
  control("previous").disabled = index === 0;
  control("next").disabled = index === clips.length - 1;
  video.play().catch(() => {}); // a missing video fires the error event
  update();
}

function update() {
  const steps = +clips[current].dataset.steps, step = Math.min(steps, Math.round(video.currentTime * HZ));
  at.max = video.duration || 1;
  at.value = video.currentTime;
  const text = `step ${step} of ${steps}`;
  if (player.querySelector("output").textContent !== text) player.querySelector("output").textContent = text;
  at.setAttribute("aria-valuetext", text);
  control("play").textContent = video.ended ? "Play again" : video.paused ? "Play" : "Pause";
}

function seek(to) { video.currentTime = Math.max(0, Math.min(to, video.duration || 0)); }
function turn() { if (video.paused || video.ended) video.play().catch(() => {}); else video.pause(); }
function step(by) { if (clips[current + by]) show(current + by); }
function speed(value) {
  video.defaultPlaybackRate = video.playbackRate = value;
  for (const button of rates) button.setAttribute("aria-pressed", +button.value === value);
}
function faster(by) {
  const values = rates.map(button => +button.value);
  speed(values[Math.max(0, Math.min(values.indexOf(video.playbackRate) + by, values.length - 1))]);
}

const KEYS = {
  " ": turn, ArrowLeft: () => seek(video.currentTime - SECOND), ArrowRight: () => seek(video.currentTime + SECOND),
  ArrowUp: () => faster(1), ArrowDown: () => faster(-1), n: () => step(1), p: () => step(-1),
};
player.addEventListener("keydown", event => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey || (event.key === " " && event.target.localName === "button")) return;
  event.preventDefault();
  act();
});
player.addEventListener("close", () => { video.removeAttribute("src"); video.load(); });
player.addEventListener("click", event => { if (event.target === player) player.close(); }); // on the backdrop
video.addEventListener("error", () => { if (video.getAttribute("src")) player.querySelector(".player-gone").hidden = false; });
for (const name of ["timeupdate", "seeked", "play", "pause", "ended", "loadedmetadata"]) video.addEventListener(name, update);
video.addEventListener("click", turn);
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
