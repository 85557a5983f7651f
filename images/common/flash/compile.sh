#!/bin/sh
# Builds flash-attn's wheel into /wheels, from the source that flash-attn.lock names, with nvcc of BASE_DEVEL at /devel.
# Hours on few cores; each of MAX_JOBS compilers takes up to 4 GB.
set -eu
. /build/network.sh

nvcc="$(ls /devel/usr/local/cuda-*/bin/nvcc 2>/dev/null | head -n 1)"
if [ -z "$nvcc" ]; then
    echo "error: flash-attn cannot be compiled: BASE_DEVEL has no nvcc under /usr/local/cuda-*. Leave BASE_DEVEL at its" \
        "default (a CUDA devel image), or build with FLASH_ATTN=prebuilt or FLASH_ATTN=none" >&2
    exit 1
fi
python="$(readlink -f /opt/venv/bin/python)" # the environment has no pip
packages="g++ git" # its setup asks git for a submodule that the source brings along
[ -d /usr/local/include/python3.10 ] || packages="$packages python3.10-dev"
"$python" -m pip --version >/dev/null 2>&1 || packages="$packages python3-pip"
apt-get -q update
# shellcheck disable=SC2086 # words are meant to be split
DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $packages

pip="$python -m pip --no-cache-dir --disable-pip-version-check"
export PIP_ROOT_USER_ACTION=ignore
$pip install --no-deps --require-hashes --target /tmp/tools -r /build/python/build.lock
export PYTHONPATH=/tmp/tools:/opt/venv/lib/python3.10/site-packages
export PATH="/tmp/tools/bin:$PATH" CUDA_HOME="${nvcc%/bin/nvcc}" FLASH_ATTENTION_FORCE_BUILD=TRUE MAX_JOBS
$pip wheel --no-deps --no-build-isolation --require-hashes --wheel-dir /wheels -r /build/flash-attn.lock
