"""Shared by all services that run a model: devices, checkpoints, downloads, training. Built on `vla_contract`.

Only `devices`, `graphs`, `memory`, `weights` and `training` import torch on import: a server answers /livez before
torch is loaded.
"""
