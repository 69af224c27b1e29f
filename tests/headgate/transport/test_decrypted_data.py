"""What TLS has decrypted is read, although no readiness of the socket announces it."""

import asyncio
from pathlib import Path

from controller.local.certificates import LocalCertificateAuthority
from headgate.files.tls import server_context
from headgate.transport.connection_options import MqttTiming
from headgate.transport.mqtt_packets import ArrivedMessage, ReadingWindow
from headgate.transport.mqtt_persistent_session import MqttPersistentSession
from tests.support.samples.client_configs import client_config
from tests.support.servers.scripted_broker import connack
from tests.support.servers.tls_broker import encrypted
from tests.support.waiting import until

SIZE = 50


def publication(number: int) -> bytes:
    """Return PUBLISH of MQTT 5 at QoS 1 with ``SIZE`` bytes."""
    variable = b"\x00\x01t" + number.to_bytes(2, "big") + b"\x00"
    return bytes([0x32, len(variable) + SIZE]) + variable + b"%d" % number * SIZE


async def test_a_paused_session_resumes_with_messages_of_one_record(tmp_path: Path) -> None:
    """A broker may write several messages at once, which TLS encrypts and decrypts together."""
    authority = LocalCertificateAuthority(tmp_path)
    files = authority.issue("broker", hosts=("127.0.0.1",))
    context = server_context(certificate_file=files.certificate_file, key_file=files.key_file)
    paused = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(connack())
        writer.write(publication(1))
        await paused.wait()
        writer.write(b"".join(publication(number) for number in range(2, 6)))
        while await reader.read(1000):
            pass
        writer.close()

    received: list[ArrivedMessage] = []
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        tls = encrypted(client_config(tls=True, ca_file=str(authority.ca_file)), "127.0.0.1")
        session = MqttPersistentSession(
            "127.0.0.1",
            port,
            "session",
            received.append,
            tls=tls,
            timing=MqttTiming(close_timeout_seconds=0.1),
            window=ReadingWindow(SIZE - 1),
        )
        async with session:
            await until(lambda: len(received) == 1)
            paused.set()
            for number in range(5):
                await until(lambda wanted=number: len(received) > wanted)
                received[number].acknowledge()

    assert [b"%d" % number * SIZE for number in range(1, 6)] == [delivery.payload for delivery in received]
