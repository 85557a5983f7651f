# Sourced by the build steps that download: certificates and an index mirror, from build secrets where they are given.
# What is written here lies under /tmp, which is a tmpfs of the RUN step: nothing of a secret reaches the image.
system=/etc/ssl/certs/ca-certificates.crt
if [ -s /run/secrets/ca ]; then
    cat /run/secrets/ca >/tmp/ca.crt
    if [ -s "$system" ]; then cat "$system" >>/tmp/ca.crt; fi
    system=/tmp/ca.crt
fi
if [ -s "$system" ]; then
    export SSL_CERT_FILE="$system" PIP_CERT="$system" GIT_SSL_CAINFO="$system"
fi
if [ -s /run/secrets/index ]; then
    UV_DEFAULT_INDEX="$(tr -d '[:space:]' </run/secrets/index)"
    export UV_DEFAULT_INDEX PIP_INDEX_URL="$UV_DEFAULT_INDEX"
fi
