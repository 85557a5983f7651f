"""A Gradio page for any policy: `python -m lessons.gradio_demo http://127.0.0.1:8000`.

Gradio is not in the lab's environments. In your own environment, run `pip install gradio`, then `./lab up openvla` and
this file, and open http://127.0.0.1:7861. The lab's page adds a login, upload limits, robot states, more cameras and a
choice of policies.
"""

import base64
import os
import sys

import gradio as gr
import httpx
import numpy as np


def encode(array: np.ndarray) -> dict:
    """Return an array in json_numpy's format, as OpenVLA's clients send it."""
    return {"__numpy__": base64.b64encode(array.tobytes()).decode(), "dtype": array.dtype.str, "shape": array.shape}


def columns_of(parts: list[dict]) -> list[str]:
    """Return name and unit of each number of an action."""
    return [f"{part['name']} {number + 1} ({part['unit']})" for part in parts for number in range(part["size"])]


def page_over(url: str, token: str | None = None) -> gr.Interface:
    """Return the page: image, instruction and key in, the numbers of an action out."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    client = httpx.Client(base_url=url, headers=headers, timeout=120)
    info = client.get("/v1/info").raise_for_status().json()  # the policy's inputs and outputs

    def ask(image: np.ndarray | None, instruction: str, unnorm_key: str | None):
        if image is None:
            raise gr.Error("Upload an image.")
        key = {"unnorm_key": unnorm_key} if unnorm_key else {}
        question = {"image": encode(image), "instruction": instruction, **key}
        answer = client.post("/act", json=question)
        if answer.is_error:
            raise gr.Error(answer.text)
        action = np.frombuffer(base64.b64decode(answer.json()["__numpy__"]), answer.json()["dtype"])
        return [action.tolist()], f"{1e3 * answer.elapsed.total_seconds():.0f} ms"

    keys = info["unnorm_keys"]
    return gr.Interface(
        ask,
        inputs=[
            gr.Image(type="numpy", label="Image"),
            gr.Textbox(label="Instruction", placeholder="put the bowl on the plate"),
            gr.Dropdown(keys, value=keys[0] if keys else None, label="Unnorm key", visible=bool(keys)),
        ],
        outputs=[gr.Dataframe(headers=columns_of(info["action"]), label="Action"), gr.Textbox(label="Time")],
        title=f"Ask {info['name']}",
        flagging_mode="never",
    )


if __name__ == "__main__":
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 7861
    page_over(sys.argv[1], os.environ.get("VLALAB_TOKEN")).launch(server_name="127.0.0.1", server_port=port)
