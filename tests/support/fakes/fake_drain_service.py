"""A child process for the supervisor's tests. It answers pings, or misbehaves on request.

    python -m tests.support.fakes.fake_drain_service SOCKET MODE

Modes: ``well``; ``mute`` (accepts requests and never answers); ``dies`` (exits at once with code
3); ``stubborn`` (ignores SIGTERM, and has a child that does); ``slow`` (listens once the file
SOCKET.go exists); ``busy`` (works now and then for 3 s before it listens).
"""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

from drain.protocol import Pong, decode_request, encode_line


async def main(socket: str, mode: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if mode != "mute":
                writer.write(encode_line(Pong(id=decode_request(line).id, runs=0)))

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
