"""An S3 server on loopback: moto with an atomic put-if-absent.

moto checks whether the key exists and then writes, so two concurrent requests could both succeed. Here requests run one
at a time, which gives the guarantee of S3 for one key. The server runs in this process, stores everything in memory, and
accepts any credentials. Clients find it through environment variables, see `environment()`.
"""

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from werkzeug.serving import WSGIRequestHandler, make_server

SECRET = "s3-secret-for-tests"
BUCKET = "bucket"
Failure = Literal["500", "503", "cut"]


def s3_environment(url: str) -> dict[str, str]:
    """Return the environment variables of a client of the server at ``url``, including the secret."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "headgate-tests",
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


class QuietHandler(WSGIRequestHandler):
    def log_request(self, *_: object) -> None:
        """Log nothing: the output of a test is for errors."""


class S3Server:
    """A running server with one empty bucket."""

    def __init__(self) -> None:
        # Every process that collects tests imports this module, and moto takes a third of a second.
        from moto.core import DEFAULT_ACCOUNT_ID  # noqa: PLC0415
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415
        from moto.s3.models import s3_backends  # noqa: PLC0415

        self.requests: list[tuple[str, str]] = []
        """(method, path) of each request, in order."""
        self.failures: list[Failure] = []
        """The server performs the next writes, and answers each with 500 or cuts its connection; 503: it does not."""
        self._app = DomainDispatcherApplication(create_backend_app)
        self._objects = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        self._one_at_a_time = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="s3-server")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a client, including the secret."""
        return s3_environment(self.url)

    def start(self) -> None:
        self._thread.start()
        self.make_bucket(BUCKET)

    def make_bucket(self, name: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT")) as response:
            assert response.status == 200

    def fill(self, keys: Iterable[str]) -> None:
        """Create empty objects without requests."""
        for key in keys:
            self._objects.put_object(BUCKET, key, b"")

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._one_at_a_time:
            self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
            if environ["REQUEST_METHOD"] != "PUT" or not self.failures:
                return list(self._app(environ, start_response))
            failure = self.failures.pop(0)
            if failure != "503":
                list(self._app(environ, lambda *_: lambda _: None))
        if failure == "cut":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
        start_response(f"{failure} Error", [])
        return []


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server."""
    server = S3Server()
    server.start()
    try:
        yield server
    finally:
        server.stop()
