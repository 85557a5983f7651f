"""Viewers: controls above a drawing of their values, in a notebook or as one HTML page without a kernel."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from ipywidgets import HTML, VBox
from ipywidgets.widgets.widget_description import DescriptionWidget

STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.4 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 0 1rem 2rem }
label { display: inline-flex; gap: .5rem; align-items: center; margin: 0 1rem .5rem 0; flex-wrap: wrap }
select, input { max-width: 100% }
"""
SCRIPT = """
for (const one of document.querySelectorAll('section')) {
  const drawings = JSON.parse(one.querySelector('script').textContent)
  const show = () => {
    const controls = [...one.querySelectorAll('input')]
    for (const it of controls) it.nextElementSibling.textContent = JSON.parse(it.dataset.names)[it.value]
    one.querySelector('div').innerHTML = drawings[controls.map(it => it.value).join()]
  }
  one.addEventListener('input', show)
  show()
}
"""


def viewer(draw: Callable[..., str], **controls: DescriptionWidget) -> VBox:
    """Return the controls above the HTML that `draw` returns for their values, updated at each change."""
    screen = HTML()

    def update(_: object = None) -> None:
        screen.value = draw(**{name: control.value for name, control in controls.items()})

    for name, control in controls.items():
        control.description = control.description or name
        control.layout.max_width = "100%"
        control.observe(update, "value")
    update()
    return VBox([*controls.values(), screen])


def page(title: str, viewers: Mapping[str, tuple[VBox, Mapping[str, Sequence[Any]]]]) -> str:
    """Return an HTML page with these viewers under their headings, rendered for all values of their controls.

    viewers: heading -> (a viewer, the values to render for controls with too many).
    """
    sections = "".join(_section(heading, *parts) for heading, parts in viewers.items())
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = f"<h1>{escape(title)}</h1>{sections}<script>{SCRIPT}</script>"
    return f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>\n'


def _section(heading: str, box: VBox, only: Mapping[str, Sequence[Any]]) -> str:
    *controls, screen = box.children
    values = []  # of each control: label → value
    for control in controls:
        selected = only.get(control.description)
        if hasattr(control, "options"):
            pairs = zip(control._options_labels, control._options_values, strict=True)
            values.append({name: value for name, value in pairs if selected is None or value in selected})
        else:
            values.append({f"{value:g}": value for value in selected or range(control.min, control.max + 1)})
    before, drawings = [control.value for control in controls], {}
    for combination in itertools.product(*(enumerate(value.values()) for value in values)):
        for control, (_, value) in zip(controls, combination, strict=True):
            control.value = value
        drawings[",".join(str(number) for number, _ in combination)] = screen.value
    for control, value in zip(controls, before, strict=True):
        control.value = value
    inputs = (_control(*arguments) for arguments in zip(controls, values, before, strict=True))
    data = json.dumps(drawings, ensure_ascii=False).replace("</", "<\\/")
    embedded = f'<script type="application/json">{data}</script>'
    return f"<section><h2>{escape(heading)}</h2>{''.join(inputs)}<div></div>{embedded}</section>"


def _control(control: DescriptionWidget, values: Mapping[str, Any], before: Any) -> str:
    names = list(values)
    start = next((number for number, value in enumerate(values.values()) if value == before), 0)
    slider = f'<input type="range" min="0" max="{len(names) - 1}" value="{start}" '
    labels = f"data-names='{escape(json.dumps(names, ensure_ascii=False), quote=True)}'>"
    return f"<label>{escape(control.description)} {slider}{labels}<output></output></label>"
