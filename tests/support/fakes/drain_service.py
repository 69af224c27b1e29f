"""A Spark process without Spark, which answers in this process and misbehaves on request."""

import asyncio

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
