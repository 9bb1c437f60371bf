"""The routes of the door: who asks, what for, and how the answer is brought back.  Nothing here logs a body."""

import asyncio
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web

from rampmeter import http_protocol
from rampmeter.ask import Ask
from rampmeter.async_client import AsyncClient, PendingAnswer
from rampmeter.door import bodies, refusals
from rampmeter.door.book import Book
from rampmeter.door.events import Events
from rampmeter.door.keys import Caller, Keys
from rampmeter.door.metrics import Metrics
from rampmeter.door.refusals import Refusal, Refused
from rampmeter.door.settings import DoorSettings
from rampmeter.errors import ClientClosed, NoAnswer
from rampmeter.posting import NotTaken
from rampmeter.replies import Answer
from topics import codec
from topics.clock import Clock
from topics.errors import DependencyDown
from topics.outcomes import Outcome
from topics.records import Reply

log = structlog.get_logger()
CALLER = web.RequestKey("caller", Caller)
_GRACE_S = 1.0
"""Beyond a deadline, so that what admission and consumers say of it comes first."""
_POLL_AGAIN = {"Retry-After": "1"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Door:
    """One door.  `_open` is touched by the loop only; it never holds more than the settings allow."""

    def __init__(self, settings: DoorSettings, keys: Keys, client: AsyncClient, book: Book, clock: Clock) -> None:
        self._settings, self._own, self._keys = settings, settings.door, keys
        self._client, self._book, self._clock = client, book, clock
        self._metrics = Metrics()
        self._open: Counter[str] = Counter()
        self.is_draining = False
        """Nothing new is taken in, and what is cut off is not cancelled: its client may ask another door."""

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[self._guard], client_max_size=self._own.max_body_bytes)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat, name="chat"),
                web.post("/v1/requests", self._enqueue, name="enqueue"),
                web.get("/v1/requests/{id:.+}", self._fetch, name="fetch"),
                web.delete("/v1/requests/{id:.+}", self._cancel, name="cancel"),
                web.get("/v1/models", self._models, name="models"),
                web.get("/v1/models/{model}", self._model),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let only callers with a key in, and turn every end into one answer in OpenAI's form."""
        try:
            response = await self._enter(request, handler)
        except Refused as error:
            response = _refusal(error.refusal)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: its text could hold a prompt, so only its place is told
            frame = traceback.extract_tb(error.__traceback__)[-1]
            log.error("fault", error=type(error).__name__, file=frame.filename, line=frame.lineno)  # noqa: TRY400
            response = _refusal(refusals.BUG)
        self._metrics.requests.labels(_route(request), str(response.status)).inc()
        return response

    async def _enter(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        caller = self._keys.caller(request.headers.get("Authorization"))
        if caller is None:
            raise Refused(refusals.NOBODY)
        request[CALLER] = caller
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            raise Refused(refusals.LARGE) from None
        except web.RequestPayloadError:
            return as_refusal(HTTPStatus.BAD_REQUEST)
        except web.HTTPException as error:
            return http_protocol.with_methods(as_refusal(error.status), error)
        except NotTaken as error:
            raise Refused(Refusal(413, "not_taken", str(error))) from None
        except (DependencyDown, ClientClosed):
            raise Refused(refusals.DOWN) from None

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if "respond-async" in request.headers.get("Prefer", ""):
            response: web.StreamResponse = await self._enqueue(request)
            response.headers["Preference-Applied"] = "respond-async"
            return response
        ask = bodies.asked(
            await self._posted(request), request[CALLER], self._settings.models, self._clock.wall_s(), self._own.wait_s
        )
        started_s = self._clock.mono_s()
        wait_s = _GRACE_S + (self._own.wait_s if ask.deadline_s is None else ask.deadline_s - self._clock.wall_s())
        with self._place(ask.tenant), self._leaving(ask, may_return="Idempotency-Key" in request.headers):
            self._book.begin(ask.id)
            pending = await self._client.submit(ask)
            try:
                response = await (self._stream if ask.stream else self._whole)(request, pending, wait_s)
            except NoAnswer as error:
                return _refusal(refusals.too_late(ask.id, error.timeout_s), ask.id)
            finally:
                pending.abandon()
                log.info("ended", id=ask.id, tenant=ask.tenant, took_s=round(self._clock.mono_s() - started_s, 3))
        return response

    async def _whole(self, _request: web.Request, pending: PendingAnswer, wait_s: float) -> web.StreamResponse:
        started_s = self._clock.mono_s()
        reply = await pending.result(wait_s)
        self._metrics.waits.observe(self._clock.mono_s() - started_s)
        if reply.outcome is not Outcome.COMPLETED:
            return _refusal(refusals.of_reply(reply), pending.id)
        return web.Response(body=bytes(reply.body), content_type="application/json", headers=_id(pending.id))

    async def _stream(self, request: web.Request, pending: PendingAnswer, wait_s: float) -> web.StreamResponse:
        events = Events(request, pending.id, _id(pending.id), self._metrics)
        try:
            return await events.send(self._timed(pending, wait_s))
        except Refused as error:
            return _refusal(error.refusal, pending.id)

    async def _timed(self, pending: PendingAnswer, wait_s: float) -> AsyncIterator[Answer]:
        started_s, is_first = self._clock.mono_s(), True
        async for answer in pending.stream(wait_s):
            if is_first:
                self._metrics.waits.observe(self._clock.mono_s() - started_s)
            is_first = False
            yield answer

    async def _enqueue(self, request: web.Request) -> web.Response:
        posted = await self._posted(request)
        ask = bodies.asked(posted, request[CALLER], self._settings.models, self._clock.wall_s(), None)
        with self._place(ask.tenant):
            self._book.begin(ask.id)
            (await self._client.submit(ask)).abandon()
        where = {"Location": f"/v1/requests/{ask.id}", **_POLL_AGAIN, **_id(ask.id)}
        return web.json_response(_state(ask.id, "queued"), status=202, headers=where)

    async def _fetch(self, request: web.Request) -> web.Response:
        request_id = self._owned(request)
        reply = await self._book.reply(request_id)
        if reply is not None and reply.tenant in {None, request[CALLER].tenant}:
            return web.Response(body=codec.encode(_told(request_id, reply)), content_type="application/json")
        if reply is None and self._book.knows(request_id):
            return web.json_response(_state(request_id, "queued"), status=202, headers=_POLL_AGAIN)
        raise Refused(refusals.unknown("this door knows of no such request, or its answer has expired"))

    async def _cancel(self, request: web.Request) -> web.Response:
        request_id = self._owned(request)
        await self._client.cancel(request_id, request[CALLER].tenant)
        return web.json_response(_state(request_id, "cancelling"), status=202)

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [_model(name) for name in sorted(self._settings.models)]})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name not in self._settings.models:
            raise Refused(Refusal(404, "model_not_found", "there is no such model; see GET /v1/models"))
        return web.json_response(_model(name))

    async def _posted(self, request: web.Request) -> bodies.Posted:
        if self.is_draining:
            raise Refused(refusals.DRAINING)
        try:
            async with asyncio.timeout(self._own.read_s):
                body = await request.read()
        except TimeoutError:
            raise Refused(refusals.SLOW) from None
        return bodies.Posted(body, {name.lower(): value for name, value in request.headers.items()})

    def _owned(self, request: web.Request) -> str:
        """The id of the path; of another tenant's requests nobody learns whether they exist."""
        request_id = request.match_info["id"]
        if not request_id.startswith(f"{request[CALLER].tenant}:") or not codec.NAME.fullmatch(request_id):
            raise Refused(refusals.unknown("you have no request of this id"))
        return request_id

    @contextmanager
    def _place(self, tenant: str) -> Iterator[None]:
        """Hold one of the places; raises Refused when there is none."""
        own = self._own
        if self._open.total() >= own.max_open_requests or self._open[tenant] >= own.tenant_open_requests:
            raise Refused(refusals.FULL)
        self._open[tenant] += 1
        self._metrics.open.inc()
        try:
            yield
        finally:
            self._metrics.open.dec()
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

    @contextmanager
    def _leaving(self, ask: Ask, *, may_return: bool) -> Iterator[None]:
        """Cancel a request whose client has left, unless it said under which key it will ask again."""
        try:
            yield
        except (ConnectionError, asyncio.CancelledError):
            if not self.is_draining:
                self._metrics.disconnects.inc()
                log.info("client_left", id=ask.id, tenant=ask.tenant, may_return=may_return)
                if not may_return:
                    self._client.cancel_soon(ask.id, ask.tenant)
            raise


def _route(request: web.Request) -> str:
    return request.match_info.route.name or "other"


def as_refusal(status: int) -> web.Response:
    """What never became a request of ours."""
    return _refusal(refusals.of_status(status))


def _refusal(refusal: Refusal, request_id: str | None = None) -> web.Response:
    named = {} if request_id is None else _id(request_id)
    challenge = {"WWW-Authenticate": "Bearer"} if refusal.status == refusals.NOBODY.status else {}
    headers = {**refusal.headers(), **named, **challenge}
    return web.json_response(refusal.body(request_id), status=refusal.status, headers=headers)


def _id(request_id: str) -> dict[str, str]:
    return {"x-request-id": request_id}


def _state(request_id: str, status: str) -> dict[str, str]:
    return {"id": request_id, "object": "rampmeter.request", "status": status}


def _told(request_id: str, reply: Reply) -> dict[str, Any]:
    """An ended request, like a line of OpenAI's batch output."""
    if reply.outcome is Outcome.COMPLETED:
        response = {"status_code": 200, "request_id": request_id, "body": reply.body}
        return {**_state(request_id, reply.outcome), "response": response, "error": None}
    return {**_state(request_id, reply.outcome), "response": None, **refusals.of_reply(reply).body()}


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rampmeter"}
