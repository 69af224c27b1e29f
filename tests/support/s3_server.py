"""An S3 server on loopback: moto's, whose put-if-absent is made as atomic as Amazon's.

moto looks whether the key exists and then writes, so two threads may both find nothing. Here one request is carried out at
a time, which is what S3 promises of one key. The server lives in this process, keeps everything in memory, and takes any
credentials. Clients find it by the environment: `environment()`.
"""

from __future__ import annotations

import contextlib
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import WSGIRequestHandler, make_server

SECRET = "s3-secret-for-tests"
BUCKET = "bucket"


class QuietHandler(WSGIRequestHandler):
    def log_request(self, *_: object) -> None:
        """Say nothing: a test's output is for what went wrong."""


class S3Server:
    """A running server with one empty bucket."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        """(method, path) of each request, in order."""
        self._app = DomainDispatcherApplication(create_backend_app)
        self._one_at_a_time = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="s3-server")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def environment(self) -> dict[str, str]:
        """Return what a client needs in its environment, the secret included."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "headgate-tests",
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def start(self) -> None:
        self._thread.start()
        self.make_bucket(BUCKET)

    def make_bucket(self, name: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT")) as answer:
            assert answer.status == 200

    def fill(self, keys: Iterable[str]) -> None:
        """Put empty objects into the bucket, without a request for each."""
        bucket = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        for key in keys:
            bucket.put_object(BUCKET, key, b"")

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._one_at_a_time:
            self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
            return list(self._app(environ, start_response))


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server, from entering to leaving."""
    server = S3Server()
    server.start()
    try:
        yield server
    finally:
        server.stop()
