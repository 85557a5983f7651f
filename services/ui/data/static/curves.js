// A line in every curve shows where the film is.
const curves = document.querySelector(".curves"), film = document.querySelector("video");

function follow() {
  for (const line of curves.querySelectorAll("line.now")) {
    const passed = Math.min(Math.max(film.currentTime - (film.dataset.start ?? 0), 0) / curves.dataset.seconds, 1);
    const x = line.ownerSVGElement.viewBox.baseVal.width * passed;
    for (const end of ["x1", "x2"]) line.setAttribute(end, x);
  }
}

if (film) {
  for (const event of ["timeupdate", "seeked"]) film.addEventListener(event, follow);
  follow(); // the film may have been moved before this script came
}
