"""A viewer: controls above a drawing of their values."""

from __future__ import annotations

from collections.abc import Callable

from ipywidgets import HTML, VBox
from ipywidgets.widgets.widget_description import DescriptionWidget


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
