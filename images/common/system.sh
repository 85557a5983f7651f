#!/bin/sh
# Installs what runs need from the distribution: the packages named, and Python $PYTHON unless the base has it.
set -eu
. /build/network.sh

packages="$*"
[ -s /etc/ssl/certs/ca-certificates.crt ] || packages="$packages ca-certificates"
if ! command -v "python$PYTHON" >/dev/null; then
    packages="$packages python$PYTHON"
    [ "$PYTHON" != 3.10 ] || packages="$packages python3-distutils" # part of Python itself in later releases
fi
[ -n "$packages" ] || exit 0

rm -f /etc/apt/sources.list.d/cuda*.list # NVIDIA's source: CUDA comes with torch's wheels, so nothing is taken from it
ca=""
[ -z "${SSL_CERT_FILE:-}" ] || ca="-o Acquire::https::CAInfo=$SSL_CERT_FILE"
apt-get $ca -q update
# shellcheck disable=SC2086 # words are meant to be split
DEBIAN_FRONTEND=noninteractive apt-get $ca -q -y install --no-install-recommends $packages
# Logs and caches name the day of the build.
rm -rf /var/log/apt /var/log/*.log /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache /var/lib/dpkg/*-old
