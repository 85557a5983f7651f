"""`python openpi_asks.py HOST PORT KEY`: openpi's own client asks twice, once wrongly; prints what came as JSON.

It runs in an environment of its own, made of `openpi-client` from the package index.
"""

import hashlib
import json
import sys

import numpy as np
from openpi_client import image_tools
from openpi_client.websocket_client_policy import WebsocketClientPolicy

policy = WebsocketClientPolicy(sys.argv[1], int(sys.argv[2]), api_key=sys.argv[3])
image_hwc = image_tools.resize_with_pad(np.full((256, 256, 3), 9, np.uint8), 224, 224)
observation = {
    "observation/image": image_hwc,
    "observation/wrist_image": image_hwc,
    "observation/state": np.linspace(0.0, 1.0, 8),
    "prompt": "put the bowl away",
}
resized = []
for shape in ((256, 256, 3), (240, 320, 3), (331, 97, 3), (224, 224, 3), (64, 64, 3)):
    image = np.random.default_rng(shape[0]).integers(0, 256, shape, np.uint8)
    resized.append(hashlib.sha256(image_tools.resize_with_pad(image, 224, 224).tobytes()).hexdigest())
answer = policy.infer(observation)
try:
    policy.infer({"observation/image": image_hwc})
except RuntimeError as error:
    refused = str(error)
again = policy.infer(observation)["actions"]
print(
    json.dumps(
        {
            "metadata": policy.get_server_metadata(),
            "dtype": str(answer["actions"].dtype),
            "shape": list(again.shape),
            "actions": answer["actions"].tolist(),
            "timing": sorted(answer["server_timing"]),
            "refused": refused,
            "resized": resized,
        }
    )
)
