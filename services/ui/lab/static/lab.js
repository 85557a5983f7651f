// The state of the lab, drawn anew every five seconds while somebody looks; the server has escaped all that it holds.
const EVERY_MS = 5000;
const place = document.querySelector("#state"), lost = document.querySelector("#lost");

setInterval(async () => {
  if (document.hidden || place.contains(document.activeElement)) return; // nobody loses the link that they are at
  try {
    const answer = await fetch("/lab/state");
    if (answer.ok) place.innerHTML = await answer.text();
    lost.hidden = answer.ok;
  } catch {
    lost.hidden = false;
  }
}, EVERY_MS);
