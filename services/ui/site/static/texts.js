// The words of this page, in its language: say(name), with its {places} filled by say(name, { place: value }).
const texts = JSON.parse(document.querySelector("#texts").textContent);

export const say = (name, values = {}) => texts[name].replace(/\{(\w+)\}/g, (_, place) => values[place]);
