"""What `rampmeter serve` and `rampmeter console` share, with a real server on the loopback."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from rampmeter import http_server
from topics.errors import DependencyDown

pytestmark = pytest.mark.anyio

PORT = ("door", "port")
PROMPT = b"the-secret-of-a-prompt"
WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OURS = b'{"status": 400}'
BEGUN = web.AppKey("begun", asyncio.Event)
BEGINS = b"POST /told HTTP/1.1\r\nHost: x\r\n"
CHUNKED = BEGINS + b"Transfer-Encoding: chunked\r\n\r\n"


async def told(request):
    """As the applications do it: what cannot be read is answered by themselves."""
    request.app[BEGUN].set()
    try:
        return web.json_response({"said": len(await request.read())})
    except web.RequestPayloadError:
        return as_refusal(400)


def as_refusal(status):
    return web.json_response({"status": status}, status=status)


async def serve(host="127.0.0.1"):
    app = web.Application()
    app[BEGUN] = asyncio.Event()
    app.add_routes([web.post("/told", told)])
    runner = http_server.runner(app, as_refusal, end_s=1)
    await runner.setup()
    return runner, await http_server.listen(runner, host, 0, PORT)


@asynccontextmanager
async def connected():
    """The app with both ends of a connection to it."""
    runner, where = await serve()
    host, _, port = where.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    yield runner.app, reader, writer
    writer.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    "unreadable",
    [
        b'{"messages":["' + PROMPT + b'"]}\r\n\r\n',
        b"GET / HTTP/1.1\r\nAuthorization: " + PROMPT * 1000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + PROMPT + b"\r\n\r\n",
    ],
    ids=["rest of a body", "long header", "bad length"],
)
async def test_of_what_is_no_http_the_log_has_the_kind_and_no_word(unreadable, caplog, capfd):
    async with connected() as (_, reader, writer):
        with capture_logs() as logged:
            writer.write(WHOLE)
            await reader.readuntil(b'{"status": 404}')
            writer.write(unreadable)
            assert_is_refused_once(await reader.read())
    assert [entry["event"] for entry in logged] == ["http_fault"]
    assert PROMPT.decode() not in f"{logged}{caplog.text}{capfd.readouterr()}"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + PROMPT + b"\r\n\r\n",
        b"GET /" + PROMPT * 1000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://[" + PROMPT + b"/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /told HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        BEGINS + b"Transfer-Encoding: " + PROMPT + b"\r\n\r\n",
        BEGINS + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nab",
        BEGINS + b"Content-Length: 2\r\n\r\n" + PROMPT + b"\r\n\r\n",
        BEGINS + b"Content-Encoding: gzip\r\nContent-Length: 22\r\n\r\n" + PROMPT,
        CHUNKED + b"zz" + PROMPT + b"\r\n",
    ],
    ids=[
        "TLS", "long line", "bad address", "no host", "HTTP 2", "unknown coding", "two lengths", "more than the length",
        "no gzip", "bad chunk",
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_answered_once_in_the_apps_form_and_never_repeated(sent):
    async with connected() as (_, reader, writer):
        writer.write(sent)
        assert_is_refused_once(await reader.read())


@pytest.mark.parametrize("rest", [b"2\r\nab\r\nzz" + PROMPT + b"\r\n", b"2\r\n" + PROMPT + b"\r\n"])
async def test_who_waits_for_a_body_learns_at_once_that_its_rest_is_broken(rest):
    async with connected() as (app, reader, writer):
        writer.write(CHUNKED)
        await app[BEGUN].wait()
        writer.write(rest)
        async with asyncio.timeout(5):
            assert_is_refused_once(await reader.read())


def assert_is_refused_once(answered):
    assert answered.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
    assert answered.count(b"400") == 2
    assert answered.endswith(OURS)
    assert PROMPT not in answered


async def test_what_is_refused_before_the_routes_has_the_apps_form_and_the_connection_stays():
    async with connected() as (_, reader, writer):
        writer.write(BEGINS + b"Expect: " + PROMPT + b"\r\nContent-Length: 2\r\n\r\nab")
        assert PROMPT not in await reader.readuntil(b'{"status": 417}')
        writer.write(BEGINS + b"Content-Length: 2\r\n\r\nab")
        await reader.readuntil(b'{"said": 2}')


async def test_what_follows_a_whole_request_and_cannot_be_read_takes_nothing_from_it():
    async with connected() as (app, reader, writer):
        writer.write(BEGINS + b"Content-Length: 2\r\n\r\nab")
        await app[BEGUN].wait()
        writer.write(PROMPT + b"\r\n\r\n")
        await reader.readuntil(b'{"said": 2}')
        assert_is_refused_once(await reader.read())


async def test_an_address_that_is_not_of_this_machine_is_told_from_a_port_that_is_taken():
    with pytest.raises(DependencyDown, match="RAMPMETER_DOOR__HOST to an address of this machine"):
        await serve("192.0.2.1")
    runner, where = await serve()
    with pytest.raises(DependencyDown, match="End the process that holds it"):
        await http_server.listen(runner, "127.0.0.1", int(where.rpartition(":")[2]), PORT)
