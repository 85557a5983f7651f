// When the machine's network changes (a container starts, a VPN comes up) a browser drops what it is just loading.
// Gradio would say "Loading..." for good; so a page that lost a part of itself is loaded again, a few times.
(() => {
  const TRIES = 8, PAUSE_MS = 1000, MEANWHILE_MS = 60000;
  let told = false;
  const lost = () => {
    if (told) return;
    told = true;
    const { tries = 0, at = 0 } = history.state?.loading ?? {};
    const before = Date.now() - at < MEANWHILE_MS ? tries : 0;
    if (before >= TRIES || document.querySelector("#ask")) return say();
    history.replaceState({ loading: { tries: before + 1, at: Date.now() } }, "");
    setTimeout(() => location.reload(), PAUSE_MS);
  };
  const say = () => document.body.insertAdjacentHTML(
    "afterbegin", '<p class="vl-lost" role="alert">A part of this page did not arrive. Load it again.</p>'
  );
  addEventListener("vite:preloadError", lost);
  addEventListener("error", ({ target }) => target.type === "module" && lost(), true);
})();
