"""Headless Chromium, driven by the DevTools protocol over a websocket.

https://chromedevtools.github.io/devtools-protocol/ describes the messages. A page that asks for a password
gets the token of its address, as a person would type it.
"""

import asyncio
import base64
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headgate.process.child_process import ChildProcess
from tests.support.servers.programs import wait_until, whole_lines

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ENDPOINT = re.compile(r"DevTools listening on (ws://\S+)")
START_SECONDS = 60.0
WIDTH, HEIGHT = 1100, 900
PHONE_WIDTH = 380


def find_browser() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


needs_browser = pytest.mark.skipif(
    find_browser() is None, reason="Chromium is missing: 'apt install chromium'; tests/install-servers installs it"
)


class Browser:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.token: str | None = None
        """What is given to a page that asks for a password."""
        self.passwords_asked = 0
        self.messages: list[str] = []
        """What the browser reports of scripts and of its content security policy."""
        self._socket = socket
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._next = 0
        self._session: str | None = None
        self._receiving = asyncio.get_running_loop().create_task(self._receive(), name="browser")

    async def start(self) -> None:
        """Open the tab."""
        target = await self._call("Target.createTarget", url="about:blank")
        attached = await self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self._call(f"{domain}.enable")
        await self._call("Fetch.enable", handleAuthRequests=True)
        await self.resize(WIDTH)

    async def close(self) -> None:
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)

    async def open(self, url: str) -> None:
        """Load a page; return once its script has run."""
        await self._call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def resize(self, width: int, height: int = HEIGHT, *, dark: bool = False) -> None:
        await self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._call("Emulation.setEmulatedMedia", features=[scheme])

    async def evaluate(self, expression: str) -> Any:
        result = await self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Return the value of ``expression`` once it is true."""
        found: Any = None

        async def is_true() -> bool:
            nonlocal found
            found = await self.evaluate(expression)
            return bool(found)

        async def reached() -> bool:
            try:
                return await is_true()
            except (AssertionError, RuntimeError):
                return False  # The page is being replaced.

        await wait_until(reached, lambda: f"{expression}: {found!r}")
        return found

    async def text(self, selector: str) -> str:
        """Return the text of the first match, as it is shown, in one line."""
        found = await self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return " ".join(str(found).split())

    async def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13}[key]
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    async def write(self, text: str) -> None:
        """Type ``text`` into what has the focus."""
        await self._call("Input.insertText", text=text)

    async def screenshot(self, path: Path) -> None:
        """Write what is shown to a PNG file."""
        image = await self._call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(image["data"]))

    async def _call(self, method: str, **parameters: Any) -> Any:
        self._next += 1
        reply = self._replies[self._next] = asyncio.get_running_loop().create_future()
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        await self._socket.send_json(message)
        async with asyncio.timeout(START_SECONDS):
            return await reply

    async def _receive(self) -> None:
        async for received in self._socket:
            message = received.json()
            if (reply := self._replies.pop(message.get("id"), None)) is not None:
                if reply.done():
                    continue
                if "error" in message:
                    reply.set_exception(RuntimeError(message["error"]["message"]))
                else:
                    reply.set_result(message["result"])
            else:
                await self._on_event(message.get("method", ""), message.get("params", {}))

    async def _on_event(self, method: str, event: dict[str, Any]) -> None:
        match method:
            case "Fetch.requestPaused":
                await self._tell("Fetch.continueRequest", requestId=event["requestId"])
            case "Fetch.authRequired":
                self.passwords_asked += 1
                answer = {"response": "CancelAuth"}
                if self.token is not None and self.passwords_asked <= 1:
                    answer = {"response": "ProvideCredentials", "username": "me", "password": self.token}
                await self._tell("Fetch.continueWithAuth", requestId=event["requestId"], authChallengeResponse=answer)
            case "Runtime.exceptionThrown":
                self.messages.append(event["exceptionDetails"].get("text", "exception"))
            case "Log.entryAdded" if event["entry"]["source"] in {"security", "javascript", "violation"}:
                self.messages.append(event["entry"]["text"])

    async def _tell(self, method: str, **parameters: Any) -> None:
        self._next += 1
        await self._socket.send_json(
            {"id": self._next, "method": method, "params": parameters, "sessionId": self._session}
        )


@asynccontextmanager
async def browser_in(folder: Path) -> AsyncIterator[Browser]:
    """Return a new tab of a browser that accepts every certificate; ``folder`` gets its log."""
    program = find_browser()
    assert program is not None, "needs_browser"
    # Not in ``folder``: a failure report shows every log below it, and a profile has binary ones.
    profile = await asyncio.to_thread(tempfile.mkdtemp, prefix="headgate-browser-")
    process = await ChildProcess.start(
        *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--mute-audio"),
        *("--ignore-certificate-errors", "--no-first-run", "--disable-background-networking", "--disable-sync"),
        *("--disable-dev-shm-usage", "--force-color-profile=srgb", "--remote-debugging-port=0"),
        *(f"--user-data-dir={profile}", "about:blank"),
        log_path=folder / "browser.log",
    )
    try:

        def endpoint() -> str | None:
            return next((found[1] for line in whole_lines(process.log_path) if (found := ENDPOINT.search(line))), None)

        url = await wait_until(endpoint, "the browser listens", START_SECONDS)
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
            browser = Browser(socket)
            try:
                await browser.start()
                yield browser
            finally:
                await browser.close()
    finally:
        await process.kill()
        await asyncio.to_thread(shutil.rmtree, profile, ignore_errors=True)
