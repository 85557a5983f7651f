() => {
  const names = NAMES;
  const name = () => document.querySelectorAll("#examples button.gallery-item").forEach((button, number) => {
    if (button.title !== names[number]) button.title = names[number];
  });
  new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
  name();
}
