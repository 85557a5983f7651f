// The page in Korean: texts that the catalogue has are replaced. `?language=` precedes the browser's language.
const language = new URLSearchParams(location.search).get("language") ?? navigator.language.slice(0, 2);
const catalogue = JSON.parse(document.getElementById("catalogue").textContent);
const ATTRIBUTES = ["title", "aria-label", "aria-valuetext", "alt"];
const patterns = Object.entries(catalogue).filter(([english]) => english.includes("{}")).map(([english, korean]) => [
  new RegExp(`^${english.replace(/[.*+?^$()|[\]\\]/g, "\\$&").replaceAll("{}", "(.+?)")}$`, "s"), korean,
]);

function translated(text) {
  const english = text.replace(/\s+/g, " ").trim();
  if (!english) return text;
  if (catalogue[english]) return text.replace(text.trim(), () => catalogue[english]);
  for (const [pattern, korean] of patterns) {
    const found = english.match(pattern);
    if (found) return text.replace(text.trim(), () => korean.replace(/\{(\d)\}/g, (_, n) => translated(found[+n + 1])));
  }
  if (!english.endsWith(".")) return text;
  const reasons = english.slice(0, -1).split(", "), korean = reasons.map(translated); // of the first banner
  return reasons.some((reason, index) => reason === korean[index]) ? text : `${korean.join(", ")}.`;
}

function translate(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = root.nodeType === Node.TEXT_NODE ? root : walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement?.closest("script, style, .what, .what-cell, .prov")) continue;
    const text = translated(node.data);
    if (text !== node.data) node.data = text;
  }
  for (const element of root.querySelectorAll?.("*") ?? []) {
    for (const name of ATTRIBUTES) if (element.hasAttribute(name)) element.setAttribute(name, translated(element.getAttribute(name)));
  }
}

if (language === "ko") {
  document.documentElement.lang = "ko";
  translate(document.body);
  document.title = translated(document.title);
  new MutationObserver(records => records.forEach(record => translate(record.target)))
    .observe(document.body, {subtree: true, childList: true, characterData: true});
}
