// An episode's films play together, and a line in its curves shows where they are.
for (const episode of document.querySelectorAll(".episode")) {
  const films = [...episode.querySelectorAll("video")];
  const lines = [...episode.querySelectorAll(".now")];
  const show = (film) => {
    const at = film.duration ? (film.currentTime / film.duration) * lines[0]?.ownerSVGElement.viewBox.baseVal.width : 0;
    for (const line of lines) { line.setAttribute("x1", at); line.setAttribute("x2", at); }
  };
  const follow = (film) => { show(film); if (!film.paused) requestAnimationFrame(() => follow(film)); };
  for (const film of films) {
    const others = films.filter((other) => other !== film);
    film.addEventListener("play", () => { for (const o of others) { if (o.paused) { o.currentTime = film.currentTime; o.play(); } } follow(film); });
    film.addEventListener("pause", () => { for (const o of others) { if (!o.paused) o.pause(); } });
    film.addEventListener("seeked", () => { show(film); for (const o of others) { if (film.paused && Math.abs(o.currentTime - film.currentTime) > 0.02) o.currentTime = film.currentTime; } });
  }
}
