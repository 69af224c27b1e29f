"""A bucket of S3 in memory, for one client: as slow as published measurements say, and with their faults.

    python -m bench.harness.slow_bucket MEDIAN_MS P99_MS SEED

A write takes a time from a log-normal distribution with this median and 99th percentile, and its transfer at
`BYTES_A_SECOND`; any other request takes half of the median. Of 100 writes one fails: it is answered with 503, or is
stored and answered with 500. When it is ready it answers its URL, and the order ``served`` with what it has served
since the last one (trials.ordered_process). Nothing is deleted.
"""

import asyncio
import math
import random
import sys
from collections import Counter
from collections.abc import Mapping
from xml.sax.saxutils import escape

from aiohttp import web

from headgate.transport.loopback import host_port, loopback
from trials.ordered_process import obey

BUCKET = "bucket"
BYTES_A_SECOND = 100e6
"""What one connection gets; S3 serves 85 to 100 MB/s ("Performance design patterns for Amazon S3")."""
FAULTS = 0.01
HEADERS = {"ETag": '"1"', "Last-Modified": "Thu, 01 Jan 1970 00:00:00 GMT"}
_Z99 = 2.326
"""The 99th percentile of the standard normal distribution."""


class SlowBucket:
    def __init__(self, median_seconds: float, p99_seconds: float, rng: random.Random) -> None:
        self._served: Counter[str] = Counter()
        """Requests by method, chunks, and their bytes."""
        self._median_seconds, self._sigma = median_seconds, math.log(p99_seconds / median_seconds) / _Z99
        self._rng = rng
        self._objects: dict[str, bytes] = {}

    async def served(self) -> dict[str, int]:
        """Return what was served since the last call."""
        served, self._served = self._served, Counter()
        return served

    async def answer(self, request: web.Request) -> web.Response:
        key, listing = request.match_info["key"], "list-type" in request.query
        self._served["lists" if listing else f"{request.method.lower()}s"] += 1
        if request.method == "PUT":
            return web.Response(status=await self._put(key, await request.read()), headers=HEADERS)
        await asyncio.sleep(self._median_seconds / 2)
        if listing:
            return web.Response(text=self._list(request.query), content_type="application/xml")
        if request.method == "GET":
            return web.Response(
                status=200 if key in self._objects else 404, body=self._objects.get(key), headers=HEADERS
            )
        return web.Response(text="<DeleteResult></DeleteResult>", content_type="application/xml")

    async def _put(self, key: str, body: bytes) -> int:
        fault = self._rng.random()
        if "/chunks/" in key:
            self._served.update(chunks=1, bytes=len(body))
        seconds = self._rng.lognormvariate(math.log(self._median_seconds), self._sigma)
        await asyncio.sleep(seconds + len(body) / BYTES_A_SECOND)
        if fault < FAULTS / 2:
            return 503
        if key in self._objects:
            return 412
        self._objects[key] = body
        return 500 if fault < FAULTS else 200

    def _list(self, query: Mapping[str, str]) -> str:
        prefix, found, folders = query.get("prefix", ""), [], set()
        for key in sorted(
            key for key in self._objects if key.startswith(prefix) and key > query.get("start-after", "")
        ):
            name, delimiter, _ = key.removeprefix(prefix).partition("/")
            if delimiter and "delimiter" in query:
                folders.add(f"<CommonPrefixes><Prefix>{escape(prefix + name)}/</Prefix></CommonPrefixes>")
            else:
                described = f"<Key>{escape(key)}</Key><Size>{len(self._objects[key])}</Size><ETag>1</ETag>"
                found.append(f"<Contents>{described}<LastModified>1970-01-01T00:00:00.000Z</LastModified></Contents>")
        return f"<ListBucketResult>{''.join(found)}{''.join(sorted(folders))}</ListBucketResult>"


async def main(median_ms: float, p99_ms: float, seed: int) -> None:
    """Serve until standard input ends."""
    bucket = SlowBucket(median_ms / 1000, p99_ms / 1000, random.Random(seed))
    application = web.Application(client_max_size=2**30)
    application.router.add_route("*", f"/{BUCKET}{{slash:/?}}{{key:.*}}", bucket.answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, loopback(), 0).start()
    await obey({"served": bucket.served}, f"http://{host_port(loopback(), runner.addresses[0][1])}")
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
