"""How the page looks: the theme with its colours and fonts, the style sheet, and the script that goes with it."""

from __future__ import annotations

import json
from pathlib import Path

import gradio as gr

from services.ui.ask import moments

HERE = Path(__file__).parent
WEIGHTS = (400, 700)  # the files of weight 600 that Gradio ships hold a few letters only
# Soft's own colours of text reach 2:1 on their grounds; these reach WCAG's 4.5:1 in both modes.
CONTRAST = {
    "background_fill_primary": "*neutral_50",
    "body_text_color_subdued": "*neutral_600",
    "body_text_color_subdued_dark": "*neutral_300",
    "block_info_text_color": "*neutral_600",
    "block_info_text_color_dark": "*neutral_300",
    "input_placeholder_color": "*neutral_500",
    "input_placeholder_color_dark": "*neutral_300",
    "block_label_text_color": "*primary_800",
    "block_title_text_color": "*primary_800",
    "block_label_background_fill_dark": "*primary_800",
    "button_primary_background_fill": "*primary_700",
    "button_primary_background_fill_dark": "*primary_700",
    "button_primary_background_fill_hover": "*primary_800",
    "button_primary_background_fill_hover_dark": "*primary_800",
    "checkbox_border_color": "*neutral_500",
    "checkbox_border_color_dark": "*neutral_400",
    "input_border_color": "*neutral_500",
    "input_border_color_dark": "*neutral_400",
    "input_border_width": "1px",
}


def theme() -> gr.themes.Base:
    """Returns the page's look; its fonts come with Gradio, so that no browser asks the internet for them."""
    fonts = [gr.themes.LocalFont("IBM Plex Sans", weights=WEIGHTS), "ui-sans-serif", "system-ui", "sans-serif"]
    mono = [gr.themes.LocalFont("IBM Plex Mono", weights=WEIGHTS), "ui-monospace", "monospace"]
    look = gr.themes.Soft(primary_hue="teal", neutral_hue="slate", radius_size="md", font=fonts, font_mono=mono)
    return look.set(**CONTRAST)


def css() -> str:
    """Returns the page's style sheet."""
    return (HERE / "page.css").read_text()


def script() -> str:
    """Returns the page's script: it names the buttons of the examples, which show a picture and no word."""
    return (HERE / "page.js").read_text().replace("NAMES", json.dumps([words for _, words in moments.examples()]))
