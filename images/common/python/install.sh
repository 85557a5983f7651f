#!/bin/sh
# Adds a layer to /opt/venv from the lock in /build/layer, every file hash-checked, the same files at every build.
# The argument: part (those pins alone, without what they need) or whole (what the lock says, and nothing else).
set -eu
. /build/network.sh

export UV_CACHE_DIR=/cache/uv UV_LINK_MODE=copy UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1
export UV_HTTP_RETRIES=8  # of 3: an index that gives no answer for some seconds has undone a build
export PYTHONDONTWRITEBYTECODE=1 UV_BUILD_CONSTRAINT=/build/python/build.lock
uv=/opt/tools/bin/uv lock=/build/layer/requirements.lock python=/opt/venv/bin/python beside=/build/layer/beside.lock
[ -e /opt/venv ] || $uv venv --no-project --python "python$PYTHON" /opt/venv
case "$1" in
part) [ ! -s $lock ] || $uv pip install --no-deps --require-hashes --python $python -r $lock ;;
whole) $uv pip sync --require-hashes --python $python $lock ;;
esac
if [ -f $beside ]; then # read as data and never imported: see vlalab/environments/venvs.py
    $uv pip install --no-deps --require-hashes --python $python --target /opt/venv/beside -r $beside
    rm -f /opt/venv/beside/.lock
fi
rm -f /opt/venv/.lock # uv's own, writable by everybody
if [ -f /build/layer/finish.py ]; then $python -B /build/layer/finish.py; fi
/build/python/compile.sh /opt/venv
