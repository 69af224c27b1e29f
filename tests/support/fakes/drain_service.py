"""A Spark process without Spark, which answers in this process and misbehaves on request; and one of its own, for supervisors.

    python -m tests.support.fakes.drain_service SOCKET MODE

answers pings. Modes: ``well``; ``mute`` (accepts requests and never answers); ``dies`` (exits at once with code
3); ``stubborn`` (ignores SIGTERM, and has a child that does); ``slow`` (listens once the file
SOCKET.go exists); ``busy`` (works now and then for 3 s before it listens).
"""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from drain import protocol


class FakeDrainService:
    """Reports ``drained`` as drained, one request at a time per connection."""

    def __init__(self) -> None:
        self.drained: frozenset[int] = frozenset()
        self.ends: dict[int, int] = {}
        """Segment → the end to which it was counted. Default: 4."""
        self.watermark: int | None = 100
        """The last counted chunk; None: the one that a request needs."""
        self.error: str | None = None
        self.ledger = protocol.CountedLedger("a" * 32, "file:///ledger")
        self.lost_log_lines = 0
        """The next answer reports them."""
        self.requests: list[object] = []
        self.connections = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._serving = 0
        self.arrived = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.counts = True
        """Whether it answers queries too, not only pings."""
        self.replacement_lines: list[bytes | None] = []
        """Replies to send instead, once each; None closes the connection."""
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._serving += 1
        self._idle.clear()
        self._writers.append(writer)
        try:
            while line := await reader.readline():
                request = protocol.decode_request(line)
                self.requests.append(request)
                self.arrived.set()
                await self.may_answer.wait()
                if not (self.counts or isinstance(request, protocol.Ping)):
                    continue
                if self.replacement_lines:
                    line = self.replacement_lines.pop(0)
                    if line is None:
                        break
                    writer.write(line)
                    if not line.endswith(b"\n"):
                        break
                else:
                    lost, self.lost_log_lines = self.lost_log_lines, 0
                    writer.write(
                        protocol.encode_line(msgspec.structs.replace(self._reply(request), lost_log_lines=lost))
                    )
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
            self._serving -= 1
            if not self._serving:
                self._idle.set()

    def _reply(self, request):
        if self.error is not None and not isinstance(request, protocol.Ping):
            return protocol.FailureResponse(id=request.id, error=self.error)
        if isinstance(request, protocol.BacklogRequest):
            external = [
                protocol.ExternalBacklogResponse(shard=each.shard, topic_id=each.topic_id) for each in request.external
            ]
            return protocol.BacklogResponse(id=request.id, external=external, ledger=self.ledger)
        if isinstance(request, protocol.Ping):
            return protocol.Pong(id=request.id, runs=0, ledger=self.ledger)
        assert isinstance(request, protocol.DrainedRequest)
        drained = {each: self.ends.get(each, 4) for each in request.query.segments & self.drained}
        watermark = request.query.at_least_chunk if self.watermark is None else self.watermark
        return protocol.DrainedResponse(id=request.id, drained=drained, watermark=watermark, ledger=self.ledger)

    async def hang_up(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.transport.abort()
        await self._idle.wait()


async def main(socket: str, mode: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if mode != "mute":
                writer.write(protocol.encode_line(protocol.Pong(id=protocol.decode_request(line).id, runs=0)))

    await asyncio.start_unix_server(serve, socket)
    await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[2] == "dies":
        sys.exit(3)
    if sys.argv[2] == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        Path(sys.argv[1] + ".child").write_text(str(child.pid))
    while sys.argv[2] == "slow" and not Path(sys.argv[1] + ".go").exists():
        time.sleep(0.02)
    begins_at = time.monotonic() + 3
    while sys.argv[2] == "busy" and time.monotonic() < begins_at:
        time.sleep(0.1)
        works_until = time.process_time() + 0.02
        while time.process_time() < works_until:
            pass
    Path(sys.argv[1]).unlink(missing_ok=True)
    asyncio.run(main(sys.argv[1], sys.argv[2]))
