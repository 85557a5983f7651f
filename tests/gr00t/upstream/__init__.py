"""Isaac-GR00T's own code behind the contract, for comparison: it made the stored vectors (make_reference.py).

With a checkout of github.com/NVIDIA/Isaac-GR00T at the commit of source.py, in a copy of the gr00t environment with
requirements.in installed:

    VLALAB_GR00T_SOURCE=CHECKOUT ./lab test gr00t --runtime local
"""
