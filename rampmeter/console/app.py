"""The routes of the console: the page, its readings, the search and the orders.  Nothing here shows or logs a body."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib.resources import files

import msgspec
import structlog
from aiohttp import web
from confluent_kafka import KafkaException

from rampmeter import http_protocol
from rampmeter.console import orders, watch
from rampmeter.console.board import Board, Full
from rampmeter.console.history import STEP_S
from rampmeter.console.permission import Permission
from rampmeter.console.settings import ConsoleSettings
from rampmeter.control import OrderRefused
from rampmeter.draining import NoConsumer
from rampmeter.explain import gathering
from rampmeter.explain.stories import Stories
from topics import codec
from topics.clock import Clock
from topics.errors import PipelineError

log = structlog.get_logger()
_STATIC = {
    "index.html": "text/html",
    "console.css": "text/css",
    "console.js": "text/javascript",
    "charts.js": "text/javascript",
    "dom.js": "text/javascript",
    "orders.js": "text/javascript",
    "panels.js": "text/javascript",
    "search.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "vendor/uPlot.iife.min.js": "text/javascript",
    "vendor/uPlot.min.css": "text/css",
}
"""All files that are served, and no other."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_EVENTS = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_SITE, _OWN = "Sec-Fetch-Site", ("same-origin", "none")
"""Browsers say whose page asks.  One of another site could not read an answer, but could have the log read again."""
_SEARCHES = 1
"""At a time: each reads hours of the log."""
_SEARCH_WAIT_S = 20.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class App:
    """The console's HTTP side.  For the loop."""

    def __init__(self, settings: ConsoleSettings, permission: Permission, board: Board, clock: Clock) -> None:
        self._settings, self._own, self._permission = settings, settings.console, permission
        self._board, self._clock = board, clock
        self._searches = asyncio.Semaphore(_SEARCHES)
        self._readings_of_log: set[asyncio.Task[Stories]] = set()
        self._files = {name: files("rampmeter.console").joinpath("static", name).read_bytes() for name in _STATIC}

    def made(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[self._guard], client_max_size=orders.MAX_BODY_BYTES)
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/static/{name:.+}", self._static),
                web.get("/api/console", self._about),
                web.get("/api/readings", self._readings),
                web.get("/api/request", self._search),
                web.post("/api/orders", self._order),
            ]
        )
        app.on_response_prepare.append(_harden)
        app.on_shutdown.append(self._close)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer only under names of ours, and turn every end into one answer."""
        if not self._is_ours(request.host):
            return _fault(421, "this console has no such name; see console.hosts")
        if request.path.startswith("/api/") and request.headers.get(_SITE, _OWN[0]) not in _OWN:
            return _fault(403, "only the console's own page may ask")
        try:
            return await handler(request)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - the boundary
            return _told(error)

    def _is_ours(self, host: str) -> bool:
        """A page elsewhere could have its own name point to this machine, and would then count as ours."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        return name.lower() in {*_LOCAL, self._own.host, *(one.lower() for one in self._own.hosts)}

    async def _index(self, _request: web.Request) -> web.Response:
        return self._file("index.html")

    async def _static(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in _STATIC:
            raise web.HTTPNotFound
        return self._file(name)

    def _file(self, name: str) -> web.Response:
        return web.Response(body=self._files[name], content_type=_STATIC[name], charset="utf-8")

    async def _about(self, request: web.Request) -> web.Response:
        """Whether orders can be given here, and whether this caller may."""
        may = self._permission.allows(request.headers.get("Authorization"))
        told = {
            "can_order": self._permission.is_possible,
            "may_order": may,
            "history_s": self._own.history_s,
            "step_s": STEP_S,
        }
        return _json(told)

    async def _readings(self, request: web.Request) -> web.StreamResponse:
        try:
            with self._board.place():
                return await self._stream(request)
        except Full:
            return _fault(503, "as many pages are open as console.max_clients allows")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=_EVENTS)
        await response.prepare(request)
        async for event in self._board.readings():
            try:
                async with asyncio.timeout(self._own.stall_s):
                    await response.write(event)
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
                break
        return response

    async def _search(self, request: web.Request) -> web.Response:
        request_id = request.query.get("id", "").strip()
        if not codec.NAME.fullmatch(request_id):
            return _fault(400, "this is no id of a request")
        # A page that leaves does not end the reading, so it must not give its place away either.
        reading = asyncio.create_task(self._gather(request_id))
        self._readings_of_log.add(reading)
        reading.add_done_callback(self._readings_of_log.discard)
        try:
            found = await asyncio.shield(reading)
        except TimeoutError:
            return _fault(429, "another search is at work; try again")
        timeline = found.timeline(request_id)
        if timeline is None:
            hours = self._own.search_back_s / 3600
            return _fault(404, f"no topic knows this id within the last {hours:g} h (console.search_back_s)")
        return _json(timeline)

    async def _gather(self, request_id: str) -> Stories:
        async with asyncio.timeout(_SEARCH_WAIT_S):
            await self._searches.acquire()
        try:
            since_s = self._clock.wall_s() - self._own.search_back_s
            return await asyncio.to_thread(gathering.gather, self._settings, since_s, request_id)
        finally:
            self._searches.release()

    async def _order(self, request: web.Request) -> web.Response:
        if not self._permission.is_possible:
            return _fault(403, "this console is read-only: it has no token")
        if not self._permission.allows(request.headers.get("Authorization")):
            return _fault(401, "this is not the token", {"WWW-Authenticate": "Bearer"})
        if request.content_type != "application/json":  # what a form of a foreign page cannot send
            return _fault(415, "orders are JSON")
        asked = orders.read(await request.read())
        given = await asyncio.to_thread(orders.give, self._settings, self._clock, asked)
        for order in given:
            log.info("ordered", order=order.id, action=order.action, kind=order.kind, name=order.name)
        return _json({"orders": given}, 202)

    async def _close(self, _app: web.Application) -> None:
        await self._board.close()


def as_refusal(status: int) -> web.Response:
    """What never became a request of ours, hardened here since no signal of the app reaches it."""
    return _fault(status, HTTPStatus(status).phrase, _HEADERS)


def _told(error: Exception) -> web.Response:
    """An end as an answer.  The text of a fault of ours could hold anything, so only its place is logged."""
    match error:
        case web.HTTPException():
            return http_protocol.with_methods(_fault(error.status, error.reason), error)
        case web.RequestPayloadError():
            return as_refusal(HTTPStatus.BAD_REQUEST)
        case OrderRefused() | NoConsumer():
            return _fault(400, str(error))
        case PipelineError() | KafkaException():
            return _fault(503, watch.said(error))
        case _:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            log.error("fault", error=type(error).__name__, file=frame.filename, line=frame.lineno)
            return _fault(500, "a fault of the console, see its log")


async def _harden(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _json(told: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(told), status=status, content_type="application/json")


def _fault(status: int, why: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode({"error": why}), status=status, content_type="application/json", headers=headers
    )
