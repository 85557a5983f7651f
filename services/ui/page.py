"""The page itself: Gradio's components, their order, and which event asks what."""

from __future__ import annotations

from abc import ABCMeta
from dataclasses import dataclass
from pathlib import Path

import gradio as gr
from gradio.data_classes import ImageData

from services.ui import asking, views
from services.ui.link import PolicyLink, Sight
from vla_contract import PolicyInfo

HERE = Path(__file__).parent
EXAMPLES = HERE / "examples"
LOOK_EVERY_S = 3.0
WEIGHTS = (400, 700)  # the files of weight 600 that Gradio ships hold a few letters only
KEEP_UPLOADS_S = (600, 3600)  # looks every ten minutes for uploads older than an hour: /tmp may be memory
AT_ONCE = 16  # questions in flight; the policy batches them
TITLE = "vla-lab: ask a policy"
INTRO = "# Ask a policy\nA picture and an instruction go in; the next action of the robot comes out."


def _uploaded_path(self: gr.Image, payload: ImageData | None) -> str | None:
    """Returns the uploaded file's path. `door.py`, and Gradio behind it, let none in from outside the uploads."""
    return payload.path if payload is not None else None


# Gradio's Image, but it hands the file over unopened: `pictures.read` opens it, and has words for what is wrong.
# Made past Gradio's metaclass, which writes a .pyi file beside every module that holds a subclass.
Upload = ABCMeta.__new__(
    type(gr.Image), "Upload", (gr.Image,),
    {"preprocess": _uploaded_path, "is_template": True, "__module__": __name__, "__doc__": gr.Image.__doc__},
)  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """What somebody fills in."""

    picture: gr.Image
    instruction: gr.Textbox
    unnorm_key: gr.Dropdown
    as_libero: gr.Checkbox

    def components(self) -> list[gr.components.Component]:
        """Returns them in the order of `asking.Form`."""
        return [self.picture, self.instruction, self.unnorm_key, self.as_libero]

    def of_the_policy(self) -> list[gr.components.Component]:
        """Returns those that some policies have and others not."""
        return [self.unnorm_key, self.as_libero]


def build(link: PolicyLink) -> gr.Blocks:
    """Returns the page over a policy; building it asks nobody."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=KEEP_UPLOADS_S, fill_width=True) as page:
        with gr.Row(elem_classes="vl-top"):
            gr.Markdown(INTRO, elem_classes="vl-intro")
            refresh = gr.Button("Look again", size="sm", scale=0, min_width=120, elem_id="refresh")
        banner = _html("policy")
        with gr.Row(elem_classes="vl-columns"):
            with gr.Column(scale=5, min_width=320):
                inputs, submit = _form()
            with gr.Column(scale=6, min_width=320, elem_id="answer"):
                answer = _answer()
                _html("about", "<h3>The policy</h3>")
                identity = _html("identity", views.identity(None))
        _wire_look(page, link, refresh, inputs, [banner, identity, *inputs.of_the_policy(), submit])
        _wire_ask(link, inputs, submit, answer)
    page.queue(default_concurrency_limit=AT_ONCE, max_size=256)
    return page


def _form() -> tuple[Inputs, gr.Button]:
    picture = Upload(
        label="Picture", sources=["upload", "clipboard"], height=300, elem_id="picture", buttons=[],
        placeholder="# Drop a picture here\nor click to choose one",
    )  # fmt: skip
    instruction = gr.Textbox(
        label="Instruction", placeholder="put the bowl on the plate", max_length=4096, elem_id="instruction"
    )
    key = gr.Dropdown(
        label="Unnorm key", info="Whose statistics turn the policy's output into an action", choices=[], value=None,
        allow_custom_value=True, visible=False, elem_id="unnorm-key",
    )  # fmt: skip
    as_libero = gr.Checkbox(
        label="Resize and crop the picture as LIBERO's evaluation does", visible=False, elem_id="as-libero",
        info="To the model's size, then the middle 90 % of it: so LIBERO checkpoints were trained",
    )  # fmt: skip
    submit = gr.Button("Ask the policy", variant="primary", interactive=False, elem_id="ask")
    gr.Examples(examples(), inputs=[picture, instruction], visible_columns=[0], label="Examples", elem_id="examples")
    return Inputs(picture, instruction, key, as_libero), submit


def _html(name: str, value: str = "") -> gr.HTML:
    return gr.HTML(value, elem_id=name, elem_classes="vl", apply_default_css=False)


def _answer() -> list[gr.components.Component]:
    numbers = _html("numbers", views.EMPTY)
    chunk = _html("chunk")
    latency = _html("latency")
    with gr.Accordion("As JSON", open=False):
        raw = gr.Code(language="json", show_label=False, interactive=False, elem_id="raw")
    return [numbers, chunk, latency, raw]


def _wire_look(page: gr.Blocks, link: PolicyLink, refresh: gr.Button, inputs: Inputs, shown: list) -> None:
    """Looks at the policy when the page opens, every few seconds, and when asked to."""

    def look(seen: Sight | None, key: str | None) -> list:
        return look_again(link, seen, key)

    def look_afresh(key: str | None) -> list:
        return look_again(link, None, key)

    def as_libero(key: str | None) -> bool:
        info = link.look().info
        return info is not None and asking.libero_is_usual(info, key)

    quiet = {"show_progress": "hidden", "queue": False, "api_visibility": "private"}
    seen, key = gr.State(None), inputs.unnorm_key
    page.load(look_afresh, key, [seen, *shown], **quiet)
    refresh.click(look_afresh, key, [seen, *shown], **quiet)
    gr.Timer(LOOK_EVERY_S).tick(look, [seen, key], [seen, *shown], **quiet)
    key.input(as_libero, key, inputs.as_libero, **quiet)


def _wire_ask(link: PolicyLink, inputs: Inputs, submit: gr.Button, answer: list) -> None:
    def ask(picture: str | None, instruction: str, unnorm_key: str | None, as_libero: bool):
        """Asks the policy for its next actions."""
        got = asking.ask(link, asking.Form(picture, instruction, unnorm_key, as_libero))
        return got.numbers, got.chunk, got.latency, got.raw

    gr.on(
        [submit.click, inputs.instruction.submit], ask, inputs.components(), answer, api_name="ask",
        trigger_mode="once", show_progress="minimal",
    )  # fmt: skip


def look_again(link: PolicyLink, seen: Sight | None, key: str | None) -> list:
    """Returns updates of what depends on the policy, or nothing to do where it says what it said before."""
    sight = link.look()
    if sight == seen:
        return [gr.skip()] * 6
    shown = [sight, views.banner(sight, link.url), views.identity(sight.info)]
    return [*shown, *(_opened(sight.info, key) if sight.usable else _closed())]


def _opened(info: PolicyInfo, key: str | None) -> list[dict]:
    """Returns updates of key, checkbox and button for a policy that can be asked."""
    keys = list(info.unnorm_keys)
    chosen = _chosen(key, keys, info.suites)
    usual = asking.libero_is_usual(info, chosen)
    return [
        gr.update(choices=keys, value=chosen, visible=bool(keys)),
        gr.update(visible=asking.libero_size(info) is not None, value=usual),
        gr.update(interactive=True),
    ]


def _closed() -> list[dict]:
    return [gr.update(visible=False), gr.update(visible=False), gr.update(interactive=False)]


def _chosen(key: str | None, keys: list[str], suites: tuple[str, ...]) -> str | None:
    """Returns the key to select: the one that was, the only one, or the one of the checkpoint's suite; else none."""
    fitting = [k for k in keys if any(k.startswith(suite) for suite in suites)]
    for choice in ([key] if key in keys else [], keys, fitting):
        if len(choice) == 1:
            return choice[0]
    return None


def examples() -> list[list[str]]:
    """Returns the example pictures, each with the instruction that its file is named after."""
    return [[str(path), path.stem.replace("_", " ")] for path in sorted(EXAMPLES.glob("*.jpg"))]


def theme() -> gr.themes.Base:
    """Returns the page's look; its fonts come with Gradio, so that no browser asks the internet for them."""
    fonts = [gr.themes.LocalFont("IBM Plex Sans", weights=WEIGHTS), "ui-sans-serif", "system-ui", "sans-serif"]
    mono = [gr.themes.LocalFont("IBM Plex Mono", weights=WEIGHTS), "ui-monospace", "monospace"]
    return gr.themes.Soft(primary_hue="teal", neutral_hue="slate", radius_size="md", font=fonts, font_mono=mono)


def css() -> str:
    """Returns the page's style sheet."""
    return (HERE / "page.css").read_text()
