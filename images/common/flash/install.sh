#!/bin/sh
# Adds flash-attn to /opt/venv. The argument says how its wheel came about: prebuilt or compile.
set -eu
. /build/network.sh
export PYTHONDONTWRITEBYTECODE=1
/opt/venv/bin/python -B /build/flash/install.py "$1"
/build/python/compile.sh /opt/venv
