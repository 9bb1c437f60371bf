"""What an engine knows of its server: whether it takes jobs now, and probes that find out when it does again."""

import asyncio

import aiohttp
import msgspec

from gpu_consumers.engine import Job
from gpu_consumers.engines import openai_request
from gpu_consumers.engines.openai_options import OpenAiOptions
from gpu_consumers.policy.breaker import Breaker
from topics.clock import Clock

PROBE_TIMEOUT_S = 30.0
"""Too small: a full server looks dead.  Too large: one that went silent is asked again as late."""
_PROBE_BYTES = 65_536
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ServerWatch:
    """Touched only by the engine's loop.  Invariant: while the breaker is open, exactly one task probes."""

    def __init__(self, session: aiohttp.ClientSession, options: OpenAiOptions, clock: Clock) -> None:
        self._session, self._options, self._clock = session, options, clock
        self.base_url = options.base_url
        self._breaker = Breaker()
        self._prober: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where chats are completed."""
        return f"{self.base_url.rstrip('/')}/chat/completions"

    def closed(self) -> str | None:
        """Why no job is sent now; None when they are."""
        return self._breaker.closed(self._clock.mono_s())

    def answered(self) -> None:
        """A job got its whole answer."""
        self._breaker = self._breaker.answered()

    def refused(self, status: int, retry_after: str | None, job: Job) -> None:
        """A job got another status than 200."""
        if status in openai_request.BUSY:
            wait_s = openai_request.wait_s(retry_after, self._clock.wall_s())
            self._breaker = self._breaker.asked_to_wait(wait_s, self._clock.mono_s(), self._options.breaker)
        # One that says when to come back is at work.
        if status >= 500 and retry_after is None:
            self.failed(job)
        else:
            self.answered()

    def failed(self, job: Job) -> None:
        """No answer, or a broken one."""
        self._breaker = self._breaker.failed(self._options.breaker)
        if self._breaker.is_open and self._prober is None:
            self._prober = asyncio.create_task(self._probe(self._options.model_names.get(job.model, job.model)))

    def close(self) -> None:
        """Probe no more."""
        if self._prober is not None:
            self._prober.cancel()

    async def _probe(self, model: str) -> None:
        """Ask a little, again and again, until the server answers; no job is used for it."""
        body = openai_request.smallest(model)
        while self._breaker.is_open:
            await asyncio.sleep(self._options.probe_s)
            if await self._answers(body):
                self._breaker = self._breaker.recovered()
        self._prober = None

    async def _answers(self, body: bytes) -> bool:
        """Whether the server is at work; that it refuses the probe is its right."""
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S, sock_connect=self._options.connect_timeout_s)
        answer = b""
        try:
            async with self._session.post(self.url, data=body, timeout=timeout, allow_redirects=False) as response:
                async for block in response.content.iter_any():
                    answer += block
                    if len(answer) > _PROBE_BYTES:
                        return False
            if response.status == 200:  # a page of a proxy is no answer
                return "choices" in _decode(answer)
        except (aiohttp.ClientError, TimeoutError, ConnectionError, msgspec.MsgspecError):
            return False
        return response.status < 500 and response.status not in openai_request.RETRYABLE
