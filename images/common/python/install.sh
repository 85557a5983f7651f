#!/bin/sh
# Makes /opt/venv from requirements.lock: every file hash-checked, the same files at every build.
set -eu
. /build/network.sh

export UV_CACHE_DIR=/cache/uv UV_LINK_MODE=copy UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1
export PYTHONDONTWRITEBYTECODE=1 UV_BUILD_CONSTRAINT=/build/python/build.lock
uv=/opt/tools/bin/uv
$uv venv --no-project --python python3.10 /opt/venv
$uv pip sync --require-hashes --python /opt/venv/bin/python /build/requirements.lock
rm -f /opt/venv/.lock # uv's own, writable by everybody
if [ -f /build/finish.py ]; then /opt/venv/bin/python -B /build/finish.py; fi
/opt/venv/bin/python -B /build/python/settle.py /opt/venv
