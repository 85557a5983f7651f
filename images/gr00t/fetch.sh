#!/bin/sh
# Fetches Isaac-GR00T at GR00T_COMMIT into /source: that commit alone, which git checks against its hash.
set -eu
. /build/network.sh

apt-get -q update
DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends git
git init -q /tmp/clone
cd /tmp/clone
if ! GIT_TERMINAL_PROMPT=0 git fetch -q --depth 1 "$GR00T_URL" "$GR00T_COMMIT"; then
    echo "error: Isaac-GR00T's commit $GR00T_COMMIT cannot be had from $GR00T_URL. Take it from a checkout with" \
        "--build-context gr00t-source=FOLDER, from another address with --build-arg GR00T_URL=…, or build the image" \
        "without it with --build-arg GR00T_SOURCE=none" >&2
    exit 1
fi
mkdir /source
GIT_LFS_SKIP_SMUDGE=1 git --work-tree=/source checkout -q FETCH_HEAD -- gr00t LICENSE
