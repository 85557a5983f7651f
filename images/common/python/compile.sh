#!/bin/sh
# Compiles the modules of an environment and dates every file to one second: numba's caches and bytecode stay valid.
# What has that date already lies in a layer below; it is left as it is, for a touched file would be copied into this one.
set -eu
environment=$1 date=@1704067200 # 2024-01-01
set_dates() {
    find "$environment" ! \( -newermt @1704067199 ! -newermt "$date" \) -exec touch --no-dereference --date="$date" {} +
}
# Packages' own tests: directories called `tests`, with an __init__.py, inside a package.
find "$environment" -path '*/site-packages/*/tests' -type d -exec test -f '{}/__init__.py' ';' -prune -exec rm -r {} +
set_dates
# Templates and test data are not valid Python: their errors are not those of the build.
"$environment/bin/python" -m compileall -qq -j 0 "$environment" || true
set_dates
