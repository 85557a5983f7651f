// A line in every curve shows where the film is.
const curves = document.querySelector(".curves"), film = document.querySelector("video");

function follow() {
  for (const line of curves.querySelectorAll("line.now")) {
    const x = line.ownerSVGElement.viewBox.baseVal.width * Math.min(film.currentTime / curves.dataset.seconds, 1);
    for (const end of ["x1", "x2"]) line.setAttribute(end, x);
  }
}

if (film) {
  for (const event of ["timeupdate", "seeked"]) film.addEventListener(event, follow);
  follow(); // the film may have been moved before this script came
}
