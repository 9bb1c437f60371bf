"""What aiohttp itself refuses, before or beside the routes, in the application's form and without what was sent."""

from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http import RawRequestMessage

AsRefusal = Callable[[int], web.StreamResponse]
"""An answer of this status in the application's form."""


def with_methods(refusal: web.Response, error: web.HTTPException) -> web.Response:
    """The same, with the methods that a path does have, if that is what the error is about."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        refusal.headers["Allow"] = error.headers["Allow"]
    return refusal


class Runner(web.AppRunner):
    """An AppRunner that answers by `as_refusal` what never gets as far as the application's middlewares."""

    def __init__(self, app: web.Application, as_refusal: AsRefusal, **options: Any) -> None:
        super().__init__(app, **options)
        self._as_refusal = as_refusal

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self._as_refusal, self._kwargs)


class _Server(web.Server):
    def __init__(self, inner: web.Server, as_refusal: AsRefusal, options: dict[str, Any]) -> None:
        super().__init__(self._answer, request_factory=inner.request_factory, **options)
        self._inner, self._as_refusal = inner.request_handler, as_refusal

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._as_refusal, loop=self._loop, **self._kwargs)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await self._inner(request)
        except web.HTTPException as error:
            response = self._as_refusal(error.status)
        if request.content.exception() is not None:
            response.force_close()  # What follows a broken body cannot be told from it.
        return response


class _Connection(web.RequestHandler):
    __slots__ = ("_as_refusal",)

    def __init__(self, server: web.Server, as_refusal: AsRefusal, **options: Any) -> None:
        super().__init__(server, **options)
        self._as_refusal = as_refusal

    def data_received(self, data: bytes) -> None:
        """As it is, and whoever waits for the rest of a body that is broken learns of it.

        aiohttp would tell only the next request, after this one's time to read was over.
        """
        super().data_received(data)
        running = self._current_request
        if running is None or running.content.is_eof() or not self._messages:
            return
        if not isinstance(self._messages[-1][0], RawRequestMessage):
            running.content.set_exception(web.RequestPayloadError())

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """As it is, but for the words: aiohttp's repeat what was sent."""
        super().handle_error(request, status, exc, message)
        refusal = self._as_refusal(status)
        refusal.force_close()
        return refusal
