"""What every service around a model needs and none should write again. `vla_contract` is below it, services are above.

Nothing here imports torch when it is imported, but for `devices`, `graphs`, `memory`, `weights` and `training`: a
server answers /livez before torch is there.
"""
