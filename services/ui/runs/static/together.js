// Two films of one episode start, stop and seek together: that is what one compares them for.
for (const pair of document.querySelectorAll(".pair")) {
  const films = [...pair.querySelectorAll("video")];
  if (films.length < 2) continue;
  for (const [film, other] of [films, [...films].reverse()]) {
    film.addEventListener("play", () => { if (other.paused && !other.ended) other.play().catch(() => {}); });
    film.addEventListener("pause", () => { if (!film.ended) other.pause(); });
    const apart = (other.dataset.start ?? 0) - (film.dataset.start ?? 0); // each may begin elsewhere in its file
    film.addEventListener("seeked", () => { if (Math.abs(other.currentTime - film.currentTime - apart) > 0.15) other.currentTime = film.currentTime + apart; });
  }
}
