// The words of this page, in its language: say(name), with its {places} filled by say(name, { place: value }).
const texts = JSON.parse(document.querySelector("#texts").textContent);

export const say = (name, values = {}) => texts[name].replace(/\{(\w+)\}/g, (_, place) => values[place]);

// A service's sentence, which is English, in the page's language; as it is where there is none for it.
const sentences = Object.entries(JSON.parse(document.querySelector("#sentences").textContent)).map(([english, words]) => [
  new RegExp(`^${english.split("{}").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("([^]+?)")}$`), words,
]);

export function said(text) {
  const [pattern, words] = sentences.find(([one]) => one.test(text)) ?? [];
  return pattern ? words.replace(/\{(\d)\}/g, (_, place) => said(pattern.exec(text)[Number(place) + 1])) : text;
}
