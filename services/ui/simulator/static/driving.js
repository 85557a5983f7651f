// A person at the arm: keys while the pad has the focus, buttons with any pointer. What is held is told ten times a second.
import { say } from "../site/texts.js";

// As the first camera sees it, which looks at the robot: away from it is backwards for the arm. In the order of an action.
const KEYS = {
  w: [0, -1], s: [0, 1], a: [1, -1], d: [1, 1], q: [2, 1], e: [2, -1],
  j: [3, -1], l: [3, 1], i: [4, 1], k: [4, -1], u: [5, 1], o: [5, -1],
};
const FINE = 0.25, TELL_MS = 100;

export class Driving {
  // tell(action): sends an action, a list of seven numbers.
  constructor(tell) {
    this.tell = tell;
    this.held = new Set();
    this.fine = false;
    this.closed = false;
    this.pad = document.querySelector("#pad");
    this.grip = document.querySelector("#gripper");
    this.size = document.querySelector("#size");
    this.pad.addEventListener("keydown", (event) => this.key(event, true));
    this.pad.addEventListener("keyup", (event) => this.key(event, false));
    this.pad.addEventListener("blur", () => this.release());
    this.grip.addEventListener("click", () => this.toggle());
    for (const button of document.querySelectorAll("[data-key]")) this.button(button);
    window.addEventListener("blur", () => this.release());
  }

  key(event, down) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    this.fine = event.shiftKey;
    if (event.code === "Space") {
      event.preventDefault();
      if (down && !event.repeat) this.toggle();
    }
    const key = event.code.replace(/^Key/, "").toLowerCase();
    if (key in KEYS) {
      event.preventDefault();
      this.hold(key, down);
    }
  }

  button(button) {
    const key = button.dataset.key;
    button.addEventListener("pointerdown", (event) => {
      button.setPointerCapture(event.pointerId);
      this.hold(key, true);
    });
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
      button.addEventListener(end, () => this.hold(key, false));
    }
    button.addEventListener("click", (event) => {  // by keyboard: detail is 0, and one press is one stride
      if (event.detail === 0) this.tell(this.action([key]));
    });
  }

  hold(key, down) {
    if (this.pad.ariaDisabled === "true" || this.held.has(key) === down) return;
    down ? this.held.add(key) : this.held.delete(key);
    document.querySelector(`[data-key=${key}]`).classList.toggle("held", down);
    if (down) this.send();
    else if (!this.held.size) setTimeout(() => this.held.size || this.tell(this.action([])), TELL_MS);  // a tap is a stride
  }

  release() {
    for (const key of [...this.held]) this.hold(key, false);
  }

  send() {
    clearTimeout(this.timer);
    if (!this.held.size) return;
    this.tell(this.action([...this.held]));
    this.timer = setTimeout(() => this.send(), TELL_MS);
  }

  action(keys) {
    const action = [0, 0, 0, 0, 0, 0, this.closed ? 1 : -1];
    const stride = Number(this.size.value) * (this.fine ? FINE : 1);
    for (const key of keys) action[KEYS[key][0]] += KEYS[key][1] * stride;
    return action;
  }

  toggle() {
    if (this.pad.ariaDisabled === "true") return;
    this.show(!this.closed);
    this.tell(this.action([...this.held]));
  }

  show(closed) {
    this.closed = closed;
    this.grip.setAttribute("aria-pressed", String(closed));
    this.grip.querySelector("span").textContent = say(closed ? "gripper_closed" : "gripper_open");
  }

  allow(may) {
    this.pad.ariaDisabled = String(!may);
    for (const one of [this.grip, ...document.querySelectorAll("[data-key]")]) one.disabled = !may;
    if (!may) this.release();
  }
}
