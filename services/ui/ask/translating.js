// Gradio draws one page for everybody. What stands on it is put into the language that the site is read in, as it comes:
// whole pieces of text that the table has, by the sentence with {} for its values; what people typed is never touched.
(() => {
  const NAMED = ["placeholder", "aria-label", "title"];
  const plain = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const exact = new Map(Object.entries(SENTENCES));
  const shaped = [...exact].filter(([english]) => english.includes("{}"))
    .map(([english, words]) => [new RegExp(`^${english.split("{}").map(plain).join("([^]+?)")}$`), words]);
  const said = (text) => {
    if (exact.has(text)) return exact.get(text);
    for (const [pattern, words] of shaped) {
      const found = pattern.exec(text);
      if (found) return words.replace(/\{(\d)\}/g, (_, place) => said(found[Number(place) + 1]));
    }
    return text;
  };
  const change = (old, put) => {
    const text = (old ?? "").trim(), words = text && said(text);
    if (words !== text) put(old.replace(text, () => words));
  };
  const words = (node) => change(node.nodeValue, (now) => { node.nodeValue = now; });
  const names = (one) => NAMED.forEach((name) => change(one.getAttribute(name), (now) => one.setAttribute(name, now)));
  const walk = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return words(node);
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches("script, style, code, header.vlab")) return;
    names(node);
    node.childNodes.forEach(walk);
  };
  const root = document.documentElement;
  const named = () => { if (root.lang !== LANGUAGE) root.lang = LANGUAGE; };  // Gradio names its own
  const look = { subtree: true, childList: true, characterData: true, attributeFilter: [...NAMED, "lang"] };
  named();
  new MutationObserver((records) => records.forEach(({ type, target, addedNodes }) => {
    if (type === "characterData") words(target);
    else if (type === "attributes") target === root ? named() : names(target);
    else addedNodes.forEach(walk);
  })).observe(document, look);
})();
