"""`python -m services.ws_mdl.tensorboard`: TensorBoard for the volume's training logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import tyro

from vla_common import entrypoint
from vla_common.serving import Serving
from vla_common.volume import Volume, make_directory
from vla_contract.protocol.problems import MEDIA_TYPE
from vla_contract.server.auth import ASK_PERSON, TokenCheck, bearer, token_for
from vla_contract.server.hosts import HostCheck
from vla_contract.server.public import page_path

log = logging.getLogger("services.ws_mdl")
OPEN = ("/livez", "/readyz")  # for health checks, which send no token
Wsgi = Callable[[dict, Callable], Iterable[bytes]]


@dataclass(frozen=True)
class ServiceSettings(Serving):
    """TensorBoard over logs/tensorboard on the volume ($VLALAB_VOLUME).

    If $VLALAB_TOKEN is set, it is the password (any user name); it is required if the network can reach the service.
    """

    port: int = 6006  # 0: any free port, printed in the log


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("tensorboard").setLevel("WARNING")  # its data server writes two lines every five seconds
    server = tyro.cli(ServiceSettings, prog="python -m services.ws_mdl.tensorboard")
    check = TokenCheck(token_for(server.host))
    logs = make_directory(Volume().path("logs") / "tensorboard")
    raise SystemExit(run(server, logs, check))


def run(server: ServiceSettings, logs: Path, check: TokenCheck) -> int:
    """Run TensorBoard until it is stopped; return its exit code."""
    from tensorboard import default, program

    class Protected(program.WerkzeugServer):
        def __init__(self, app: Wsgi, flags):
            super().__init__(protect(app, check), flags)

    board = program.TensorBoard(default.get_plugins(), server_class=Protected)
    address = ["--host", server.host, "--port", str(server.port), "--path_prefix", page_path("tensorboard")]
    board.configure(argv=["tensorboard", "--logdir", str(logs), *address])
    log.info("training curves of %s", logs)
    return board.main()


def protect(app: Wsgi, check: TokenCheck) -> Wsgi:
    """Add password protection, which TensorBoard lacks. OPEN paths need no password."""
    hosts = None if check.required else HostCheck()

    def guarded(environ: dict, start_response: Callable) -> Iterable[bytes]:
        def answer(status: str, body: bytes, media_type: str = "text/plain; charset=utf-8") -> list[bytes]:
            headers = [("Content-Type", media_type), ("Content-Length", str(len(body)))]
            start_response(status, [*headers, *(ASK_PERSON.items() if status.startswith("401") else ())])
            return [body]

        names = {b"host": environ.get("HTTP_HOST"), b"origin": environ.get("HTTP_ORIGIN")}
        headers = [(name, value.encode("latin-1")) for name, value in names.items() if value is not None]
        if hosts is not None and (refusal := hosts.refusal(headers)):
            return answer("403 Forbidden", refusal.json(), MEDIA_TYPE)
        if environ.get("PATH_INFO") in OPEN:
            return answer("200 OK", b"ready\n")
        if check.allows(bearer(environ.get("HTTP_AUTHORIZATION", ""))):
            return app(environ, start_response)
        return answer("401 Unauthorized", b"The password is the lab's token (VLALAB_TOKEN).\n")

    return guarded


if __name__ == "__main__":
    entrypoint.run(main)
