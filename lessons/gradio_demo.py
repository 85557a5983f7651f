"""A page of one's own around any policy, in Gradio: `python -m lessons.gradio_demo http://127.0.0.1:8000`.

Gradio is in no environment of the lab, whose own pages are templates. In an environment of yours one command brings all
that this file needs: `pip install gradio`. Then `./lab up openvla`, run this file, open http://127.0.0.1:7861. What it
lacks beside the lab's page: a login, limits on what is uploaded, states and further cameras, policies that come and go.
"""

import base64
import os
import sys

import gradio as gr
import httpx
import numpy as np


def encode(array: np.ndarray) -> dict:
    """Returns an array as json_numpy writes it, which is what OpenVLA's clients send."""
    return {"__numpy__": base64.b64encode(array.tobytes()).decode(), "dtype": array.dtype.str, "shape": array.shape}


def columns_of(parts: list[dict]) -> list[str]:
    """Returns a name with its unit for each number of an action."""
    return [f"{part['name']} {number + 1} ({part['unit']})" for part in parts for number in range(part["size"])]


def page_over(url: str, token: str | None = None) -> gr.Interface:
    """Returns the page: a picture, an instruction and a key go in; the numbers of an action come out."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    client = httpx.Client(base_url=url, headers=headers, timeout=120)
    info = client.get("/v1/info").raise_for_status().json()  # what the policy takes, and what its numbers are

    def ask(picture: np.ndarray | None, instruction: str, unnorm_key: str | None):
        if picture is None:
            raise gr.Error("The picture is missing; upload one.")
        key = {"unnorm_key": unnorm_key} if unnorm_key else {}
        question = {"image": encode(picture), "instruction": instruction, **key}
        answer = client.post("/act", json=question)
        if answer.is_error:
            raise gr.Error(answer.text)
        action = np.frombuffer(base64.b64decode(answer.json()["__numpy__"]), answer.json()["dtype"])
        return [action.tolist()], f"{1e3 * answer.elapsed.total_seconds():.0f} ms"

    keys = info["unnorm_keys"]
    return gr.Interface(
        ask,
        inputs=[
            gr.Image(type="numpy", label="Picture"),
            gr.Textbox(label="Instruction", placeholder="put the bowl on the plate"),
            gr.Dropdown(keys, value=keys[0] if keys else None, label="Unnorm key", visible=bool(keys)),
        ],
        outputs=[gr.Dataframe(headers=columns_of(info["action"]), label="Action"), gr.Textbox(label="It took")],
        title=f"Ask {info['name']}",
        flagging_mode="never",
    )


if __name__ == "__main__":
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 7861
    page_over(sys.argv[1], os.environ.get("VLALAB_TOKEN")).launch(server_name="127.0.0.1", server_port=port)
