"""The page itself: Gradio's components, their order, and which event asks what."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Sequence
from dataclasses import dataclass, replace

import gradio as gr
from gradio.data_classes import ImageData

from services.ui.ask import asking, images, moments, needs, views
from services.ui.ask.choice import Choice
from services.ui.ask.link import MOST_PICTURES, PolicyLink
from services.ui.ask.needs import Needs
from vla_contract import PolicyInfo

LOOK_EVERY_S = 3.0
KEEP_UPLOADS_S = (600, 3600)  # looks every ten minutes for uploads older than an hour: /tmp may be memory
QUIET = {"show_progress": "hidden", "queue": False, "api_visibility": "private"}
AT_ONCE = 16  # questions in flight; the policy batches them
TITLE = "vla-lab: ask a policy"
INTRO = "# Ask a policy\nA picture and an instruction go in; the next action of the robot comes out."


def _uploaded_path(self: gr.Image, payload: ImageData | None) -> str | None:
    """Returns the uploaded file's path. `request_filter.py`, and Gradio behind it, let none in from outside."""
    return payload.path if payload is not None else None


# Gradio's Image, but it hands the file over unopened: `images.read` opens it, and has words for what is wrong.
# Made past Gradio's metaclass, which writes a .pyi file beside every module that holds a subclass.
Upload = ABCMeta.__new__(
    type(gr.Image), "Upload", (gr.Image,),
    {"preprocess": _uploaded_path, "is_template": True, "__module__": __name__, "__doc__": gr.Image.__doc__},
)  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """What somebody fills in, what is said about the picture, and the examples to fill it in with."""

    picture: gr.Image
    said: gr.HTML
    instruction: gr.Textbox
    unnorm_key: gr.Dropdown
    as_libero: gr.Checkbox
    policies: gr.Dropdown
    state: gr.Textbox
    more: list[gr.Image]
    examples: gr.Examples

    def components(self) -> list[gr.components.Component]:
        """Returns them in the order of `asking.Form`, whom to ask before what few policies need."""
        return [self.picture, self.instruction, self.unnorm_key, self.as_libero, self.policies, self.state, *self.more]

    def of_the_policy(self) -> list[gr.components.Component]:
        """Returns those that some policies have and others not."""
        return [self.unnorm_key, self.as_libero]

    def of_needs(self) -> list[gr.components.Component]:
        """Returns those that follow what the chosen policies need together."""
        return [self.picture, self.state, *self.more]


def build(choice: Choice) -> gr.Blocks:
    """Returns the page over policies; building it asks nobody."""
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
        _wire_look(page, choice, refresh, inputs, [banner, identity, *inputs.of_the_policy(), submit])
        _wire_ask(choice, inputs, submit, answer)
        _wire_picture(choice, inputs)
    page.queue(default_concurrency_limit=AT_ONCE, max_size=256)
    return page


def _form() -> tuple[Inputs, gr.Button]:
    policies = gr.Dropdown(
        label="Policies", info="Those that are up; several answer side by side", choices=[], value=[], multiselect=True,
        allow_custom_value=True, visible=False, elem_id="policies",
    )  # fmt: skip
    picture = _upload("picture", height=300)
    with gr.Row(elem_classes="vl-more"):
        more = [_upload(f"picture-{n}", height=170, min_width=150, visible=False) for n in range(2, MOST_PICTURES + 1)]
    said = _html("picture-said")
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
    state = gr.Textbox(
        "", label="State of the robot", lines=2, max_lines=12, max_length=4096, visible=False, elem_id="state",
    )  # fmt: skip
    submit = gr.Button("Ask the policy", variant="primary", interactive=False, elem_id="ask")
    shown = gr.Examples(
        moments.examples(), inputs=[picture, instruction], visible_columns=[0], label="Examples", elem_id="examples",
        api_visibility="private",
    )  # fmt: skip
    return Inputs(picture, said, instruction, key, as_libero, policies, state, more, shown), submit


def _upload(name: str, **look: object) -> Upload:
    return Upload(
        label="Picture", sources=["upload", "clipboard"], elem_id=name, buttons=[], format="png",
        placeholder="# Drop a picture here\nor click to choose one", **look,
    )  # fmt: skip


def _html(name: str, value: str = "") -> gr.HTML:
    return gr.HTML(value, elem_id=name, elem_classes="vl", apply_default_css=False)


def _answer() -> list[gr.components.Component]:
    numbers = _html("numbers", views.EMPTY)
    chunk = _html("chunk")
    latency = _html("latency")
    with gr.Accordion("As JSON", open=False):
        raw = gr.Textbox(label="JSON", interactive=False, lines=8, max_lines=24, buttons=["copy"], elem_id="raw")
    return [numbers, chunk, latency, raw]


def _wire_look(page: gr.Blocks, choice: Choice, refresh: gr.Button, inputs: Inputs, shown: list) -> None:
    """Looks at the policies when the page opens, every few seconds, and when asked to.

    What it last saw stands in the page itself. Gradio's State would be a session, and a session holds a connection
    open: a browser has six for an address, so a sixth tab would show "Loading..." for good.
    """

    def look(seen: str, key: str | None, names: list[str] | None, state: str) -> list:
        policy, _, wanted = seen.partition(" ")
        shown = look_again(_first(choice, names), policy, key)
        needed = _needed(choice, names)
        now = needed.digest
        fields = [gr.skip()] * (2 + needs.MORE_PICTURES) if now == wanted else _fields(needed, state)
        policy = policy if shown[0] == gr.skip() else shown[0]
        return [f"{policy} {now}", *shown[1:], *offer(choice, names), *fields]

    def look_afresh(key: str | None, names: list[str] | None, state: str) -> list:
        return look("", key, names, state)

    def as_libero(key: str | None, names: list[str] | None) -> bool:
        info = _first(choice, names).status().info
        return info is not None and asking.libero_is_usual(info, key)

    seen, given = gr.Textbox("", visible=False), [inputs.unnorm_key, inputs.policies]
    shown = [seen, *shown, inputs.policies, *inputs.of_needs()]
    for look_now in (page.load, refresh.click, inputs.policies.input):
        look_now(look_afresh, [*given, inputs.state], shown, **QUIET)
    gr.Timer(LOOK_EVERY_S).tick(look, [seen, *given, inputs.state], shown, **QUIET)
    inputs.unnorm_key.input(as_libero, given, inputs.as_libero, **QUIET)


def _first(choice: Choice, names: Sequence[str] | None) -> PolicyLink:
    return next(iter(choice.chosen(names).values()))


def _needed(choice: Choice, names: Sequence[str] | None) -> Needs:
    return needs.of(link.status().info for link in choice.chosen(names).values())


def _fields(needed: Needs, state: str) -> list[dict]:
    """Returns updates of the picture's name, of the state's field, and of those for further pictures."""
    named = f"Picture: {', '.join(needed.first)}" if needed.more else "Picture"
    filled = needs.filled_in(needed.state, state)
    return [
        gr.update(label=named),
        gr.update(visible=bool(needed.state), value=filled, info=needs.explained(needed.state)),
        *(gr.update(visible=bool(camera), label=f"Picture: {camera}") for camera in needed.offered),
    ]


def offer(choice: Choice, names: Sequence[str] | None) -> list[dict]:
    """Returns an update of whom to choose from: who is up, or was chosen; hidden where that is one."""
    known = [name for name in names or () if name in choice.links]
    offered = [name for name in choice.links if name in {*choice.up(), *known}]
    return [gr.update(choices=offered, visible=len(offered) > 1)]


def _wire_ask(choice: Choice, inputs: Inputs, submit: gr.Button, answer: list) -> None:
    def ask(
        picture: str | None, instruction: str, unnorm_key: str | None, as_libero: bool,
        policies: list[str] | None, state: str = "",
        picture_2: str | None = None, picture_3: str | None = None, picture_4: str | None = None,
    ):  # fmt: skip
        """Asks the policies that are chosen for their next actions; by default the page's own."""
        more = (picture_2, picture_3, picture_4)
        links, needed = choice.chosen(policies), _needed(choice, policies)
        form = asking.Form(picture, instruction, unnorm_key, as_libero, state, more, needed)
        if len(links) == 1:
            got = asking.ask(*links.values(), form)
        else:
            got = asking.ask_several(links, [fitted(form, link.status().info) for link in links.values()])
        return got.numbers, got.chunk, got.latency, got.raw

    gr.on(
        [submit.click, inputs.instruction.submit], ask, inputs.components(), answer, api_name="ask",
        trigger_mode="once", show_progress="minimal",
    )  # fmt: skip


def fitted(form: asking.Form, info: PolicyInfo | None) -> asking.Form:
    """Returns a form of several policies for one of them: with a key of its own where it does not have the form's."""
    if info is None or not info.unnorm_keys:
        return form
    return replace(form, unnorm_key=_chosen(form.unnorm_key, list(info.unnorm_keys), info.suites))


def _wire_picture(choice: Choice, inputs: Inputs) -> None:
    """Looks at what is uploaded at once, and lets an example choose the key of its suite."""

    def example(instruction: str, names: list[str] | None) -> list:
        key = choose_for(_first(choice, names).status().info, moments.suite_of(instruction))
        return [*key, *_moment(_needed(choice, names), instruction)]

    picture, said = inputs.picture, inputs.said
    for one in (picture, *inputs.more):
        one.upload(look_at, one, [one, said], show_progress="hidden", api_visibility="private")
        one.clear(lambda: "", None, said, **QUIET)
    loaded = inputs.examples.load_input_event
    filled = [*inputs.of_the_policy(), said, inputs.state, *inputs.more]
    loaded.then(example, [inputs.instruction, inputs.policies], filled, **QUIET)


def _moment(needed: Needs, instruction: str) -> list:
    """Returns the state and the further pictures of an example: none of a camera that it knows nothing of."""
    state = needs.filled_in(needed.state, "", instruction)
    return [state, *(moments.picture_of(instruction, camera) for camera in needed.offered)]


def look_at(path: str | None) -> tuple:
    """Returns what to show of an upload and what to say about it: what is no picture is not kept.

    One in a format that browsers do not draw is shown as the same pixels in PNG.
    """
    try:
        return images.drawable(path) or gr.skip(), ""
    except images.ImageError as error:
        return None, asking.unusable(error)


def choose_for(info: PolicyInfo | None, suite: str | None) -> list:
    """Returns updates of key and checkbox for an example of a suite, and of what was said about the last picture.

    A policy without statistics of that suite keeps the key it has; one that is not there yet gets the suite's name,
    by which a key is chosen once it is.
    """
    key = suite if info is None else _fitting(suite, info.unnorm_keys)
    if key is None:
        return [gr.skip(), gr.skip(), ""]
    usual = gr.skip() if info is None else asking.libero_is_usual(info, key)
    return [key, usual, ""]


def _fitting(suite: str | None, keys: Sequence[str]) -> str | None:
    """Returns the one key of a suite: its name, or its name with an ending; None where there is none, or several."""
    fitting = [key for key in keys if suite is not None and key.startswith(suite)]
    return suite if suite in fitting else fitting[0] if len(fitting) == 1 else None


def look_again(link: PolicyLink, seen: str, key: str | None) -> list:
    """Returns updates of what depends on the policy, or nothing to do where it says what it said before.

    seen: the digest of what it said then.
    """
    status = link.status()
    if status.digest == seen:
        return [gr.skip()] * 6
    shown = [status.digest, views.banner(status, link.url), views.identity(status.info)]
    return [*shown, *(_opened(status.info, key) if status.usable else _closed())]


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
    was = _fitting(key, keys)  # a key, or an example's suite
    for choice in ([was] if was else [], keys, fitting):
        if len(choice) == 1:
            return choice[0]
    return None
