"""Runs on the volume: created, found, resumed, listed and deleted."""

STORE = "run.sqlite"  # the file that makes a directory a run
# prefixes of the course's weights files, by directory under checkpoints/
PREFIXES = {
    "transformer": "tmodel", "diffusion": "model", "minivla": "minivla", "vit": "vit", "bert": "bert", "gpt": "gpt",
    "lstm": "lstm", "vae": "vae", "forecast": "forecast", "skipgram": "skipgram",
}  # fmt: skip
