"""Images, checkpoints, assets and the lab itself in one file: written, checked, unpacked."""
