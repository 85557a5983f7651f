"""A service for the tests of the local runtime: ready after a while, and as ill-behaved as its flags ask for."""

import argparse
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


def chat() -> None:
    """Prints without end."""
    while True:
        print("x" * 999, flush=True)
        time.sleep(0.01)


def main() -> None:
    """Serves /readyz (503 until ready) on a port; prints one line at the start."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ready-after", type=float, default=0.0)
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--crash", action="store_true", help="end with code 3 at once")
    parser.add_argument("--chatty", action="store_true", help="print 100 kB a second")
    parser.add_argument("--touch", type=Path, help="a file to make at the start")
    parser.add_argument("--ready-when", type=Path, help="ready as soon as this file is there")
    parser.add_argument("--asks", help="the address of another service")
    options = parser.parse_args()
    if options.touch:
        options.touch.touch()
    print(f"small service, folder {os.environ.get('DATA')}", flush=True)
    if options.crash:
        sys.exit("cannot load the weights")
    if options.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.chatty:
        threading.Thread(target=chat, daemon=True).start()
    ready_at = time.monotonic() + options.ready_after

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            waits = time.monotonic() < ready_at or (options.ready_when and not options.ready_when.exists())
            self.send_response(503 if waits else 200)
            self.end_headers()

    HTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
