"""A real headless browser, spoken to over its DevTools protocol; none is downloaded."""

import asyncio
import base64
import itertools
import os
import shutil
from contextlib import asynccontextmanager

import aiohttp

from tests.support import started

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
INSTALL = "needs a browser on the PATH: apt-get install chromium (or Google Chrome)"
_OPTIONS = (
    "--headless=new", "--remote-debugging-port=0", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-extensions", "--disable-background-networking", "--hide-scrollbars", "about:blank",
)  # fmt: skip
_START_S = 60.0
_LOOK_S = 0.1


class Page:
    """One tab.  `faults` are exceptions, errors on its console, and what its policy forbade."""

    def __init__(self, socket):
        self._socket, self._numbers, self._open = socket, itertools.count(1), {}
        self.faults = []
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self):
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._open.pop(told["id"]).set_result(told)
            elif told["method"] == "Runtime.exceptionThrown":
                self.faults.append(told["params"]["exceptionDetails"])
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.faults.append(told["params"]["entry"])

    async def tell(self, method, **params):
        number = next(self._numbers)
        self._open[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        told = await asyncio.wait_for(self._open[number], _START_S)
        assert "error" not in told, told
        return told["result"]

    async def begin(self):
        for domain in ("Page", "Runtime", "Log"):
            await self.tell(f"{domain}.enable")

    async def look(self, width, height=900, scheme="light"):
        """A window of this size, in light or dark."""
        await self.tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def open(self, url):
        await self.tell("Page.navigate", url=url)
        await self.until(f"location.href === '{url}' && document.readyState === 'complete'")

    async def run(self, script):
        """The value of an expression."""
        told = await self.tell("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, script, timeout_s=40.0):
        """Wait until an expression holds; an element does, though it has no value here."""
        end_s = asyncio.get_running_loop().time() + timeout_s
        while not await self.run(f"Boolean({script})"):
            text = "document.body.innerText.slice(0, 3000)"
            assert asyncio.get_running_loop().time() < end_s, f"not: {script}\n{await self.run(text)}"
            await asyncio.sleep(_LOOK_S)

    async def text(self, selector):
        return await self.run(f"document.querySelector('{selector}').innerText")

    async def picture(self, *, whole=True):
        """A PNG."""
        told = await self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(told["data"])

    async def close(self):
        self._listening.cancel()
        await self._socket.close()


@asynccontextmanager
async def page(folder):
    """A tab of a browser of its own."""
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with (folder / "browser.log").open("wb") as log:
        process = started.popen(
            [FOUND, *root, f"--user-data-dir={folder / 'browser'}", *_OPTIONS], stdout=log, stderr=log
        )
    try:
        port = await _port(folder / "browser" / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (tab,) = [one for one in await answer.json() if one["type"] == "page"]
            made = Page(await session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0))
            await made.begin()
            try:
                yield made
            finally:
                await made.close()
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 20)


async def _port(note, process):
    end_s = asyncio.get_running_loop().time() + _START_S
    while not (note.exists() and note.read_text().strip()):
        assert process.poll() is None, "the browser has ended"
        assert asyncio.get_running_loop().time() < end_s, "the browser does not start"
        await asyncio.sleep(_LOOK_S)
    return note.read_text().split()[0]
