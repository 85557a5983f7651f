"""`python -m vla_common.healthcheck URL`: exit status 0 when the service is ready, 1 with the reason when not.

Only the standard library, so that a check every few seconds costs little.
"""

import argparse
import http.client
import json
import sys
import urllib.error
import urllib.request


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status; prints one line."""
    parser = argparse.ArgumentParser(prog="python -m vla_common.healthcheck", description=main.__doc__)
    parser.add_argument("url", help="for example http://127.0.0.1:8001; asks /readyz unless the URL has a path")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds")
    options = parser.parse_args(arguments)
    ready, text = check(options.url, options.timeout)
    print(text, file=sys.stdout if ready else sys.stderr)
    return 0 if ready else 1


def check(url: str, timeout_s: float) -> tuple[bool, str]:
    """Returns whether the service is ready, and what it says."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest:
        return False, f"{url!r} is no URL; expected for example http://127.0.0.1:8001"
    target = url if "/" in rest.rstrip("/") else url.rstrip("/") + "/readyz"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(target, timeout=timeout_s) as answer:
            return True, f"{target}: {answer.status}"
    except urllib.error.HTTPError as error:
        return False, f"{target}: {error.code} {_detail(error.read(65536))}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return False, f"{target}: {error}"


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]


if __name__ == "__main__":
    sys.exit(main())
