#!/bin/sh
# Fetches Isaac-GR00T's package at GR00T_COMMIT into /source: of that commit alone, which git checks against its hash, and
# without the rest of the repository (videos, notebooks).
set -eu
. /build/network.sh

apt-get -q update
DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends git
git init -q /tmp/clone
cd /tmp/clone
git remote add origin "$GR00T_URL"
export GIT_TERMINAL_PROMPT=0 GIT_LFS_SKIP_SMUDGE=1
mkdir /source
if ! git fetch -q --depth 1 --filter=blob:none origin "$GR00T_COMMIT" ||
    ! git --work-tree=/source checkout -q FETCH_HEAD -- gr00t LICENSE; then
    echo "error: Isaac-GR00T's commit $GR00T_COMMIT cannot be had from $GR00T_URL. Take it from a checkout with" \
        "--build-context gr00t-source=FOLDER, from another address with --build-arg GR00T_URL=…, or build the image" \
        "without it with --build-arg GR00T_SOURCE=none" >&2
    exit 1
fi
