#!/bin/sh
# Installs what runs need from the distribution: the packages named, and Python 3.10 unless the base has one.
set -eu
. /build/network.sh

packages="$*"
[ -s /etc/ssl/certs/ca-certificates.crt ] || packages="$packages ca-certificates"
command -v python3.10 >/dev/null || packages="$packages python3.10 python3-distutils"
[ -n "$packages" ] || exit 0

rm -f /etc/apt/sources.list.d/cuda*.list # NVIDIA's source: CUDA comes with torch's wheels, so nothing is taken from it
ca=""
[ -z "${SSL_CERT_FILE:-}" ] || ca="-o Acquire::https::CAInfo=$SSL_CERT_FILE"
apt-get $ca -q update
# shellcheck disable=SC2086 # words are meant to be split
DEBIAN_FRONTEND=noninteractive apt-get $ca -q -y install --no-install-recommends $packages
# Logs and caches name the day of the build.
rm -rf /var/log/apt /var/log/*.log /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache /var/lib/dpkg/*-old
