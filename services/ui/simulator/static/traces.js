// Each number of the actions as a line of its own over the last steps.
import { say } from "../site/texts.js";

const LAST = 200;
const SVG = "http://www.w3.org/2000/svg";

const element = (name, attributes = {}) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

const named = (word) => {
  try { return say(`name_${word}`); } catch { return word; }
};

function row(part, place) {
  const made = document.createElement("div");
  made.className = "trace";
  const label = document.createElement("span"), value = document.createElement("b");
  label.textContent = named(part.name.split(" ")[0]) + (part.size > 1 ? ` ${"xyzw"[place] ?? place}` : "");
  const svg = element("svg", { viewBox: `0 0 ${LAST} 34`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const line = element("polyline");
  svg.append(element("line", { x1: 0, x2: LAST, y1: 17, y2: 17, "vector-effect": "non-scaling-stroke" }), line);
  made.append(label, svg, value);
  return { made, line, value, low: part.low ?? -1, high: part.high ?? 1 };
}

export class Traces {
  constructor(box, parts) {
    this.rows = parts.flatMap((part) => Array.from({ length: part.size }, (_, place) => row(part, place)));
    box.replaceChildren(...this.rows.map((one) => one.made));
  }

  show(actions) {
    const last = actions.slice(-LAST);
    this.rows.forEach(({ line, value, low, high }, number) => {
      const y = (at) => 32 - (30 * (Math.min(high, Math.max(low, at)) - low)) / (high - low);
      line.setAttribute("points", last.map((action, step) => `${step},${y(action[number]).toFixed(1)}`).join(" "));
      value.textContent = last.length ? last.at(-1)[number].toFixed(2) : "";
    });
  }
}
