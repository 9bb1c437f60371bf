"""`python -m tests.support.mortal_server`: an OpenAI-compatible server that dies of one prompt.

Its keeper starts it anew on the same port, as a supervisor does.
"""

import asyncio
import os
import subprocess
import sys
import threading

from tests.support.openai_server import OpenAiServer, serve

MARK = "the prompt that no server survives"


class MortalServer(OpenAiServer):
    """Reads for a while, so that others run beside, and then ends at once."""

    async def complete(self, request):
        if MARK.encode() in await request.read():
            await asyncio.sleep(0.3)
            os._exit(7)
        return await super().complete(request)


class Keeper:
    """Keeps one running; counts its deaths."""

    def __init__(self, *, pause_s=0.05):
        self.deaths, self._pause_s, self._is_closed = 0, pause_s, False
        self._start(0)
        self.url = self._process.stdout.readline().decode().strip()
        self._port = self.url.rsplit(":", 1)[1].split("/")[0]
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def kill(self):
        self._process.kill()

    def close(self):
        self._is_closed = True
        self._process.kill()
        self._thread.join()

    def _start(self, port):
        command = [sys.executable, "-m", "tests.support.mortal_server", str(port), str(self._pause_s)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)

    def _keep(self):
        while self._process.wait() is not None and not self._is_closed:
            self.deaths += 1
            self._start(self._port)


async def main(port, pause_s):
    server = MortalServer()
    server.pause_s, server.port = pause_s, port
    async with serve(server):
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
