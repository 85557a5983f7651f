#!/bin/sh
# Installs uv into /opt/tools, in the version and with the hashes of the root's requirements.lock.
set -eu
. /build/network.sh

if ! python"$PYTHON" -m pip --version >/dev/null 2>&1; then
    install="apt-get -q -y install --no-install-recommends python3-pip"
    export DEBIAN_FRONTEND=noninteractive
    $install || { apt-get -q update && $install; } # the lists are there where Python was installed just before
fi
awk '/^[^ #]/ { wanted = /^uv==/ } wanted' /build/host.lock >/tmp/uv.lock
PIP_ROOT_USER_ACTION=ignore python"$PYTHON" -m pip install --no-cache-dir --disable-pip-version-check \
    --no-deps --require-hashes --no-compile --target /opt/tools -r /tmp/uv.lock
