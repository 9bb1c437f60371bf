"""What `rampmeter serve` and `rampmeter console` share, with a real server on the loopback."""

import asyncio

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from rampmeter import http_server
from topics.errors import DependencyDown

pytestmark = pytest.mark.anyio

PORT = ("door", "port")
PROMPT = b"the secret of a prompt"
WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def serve(host="127.0.0.1"):
    runner = http_server.runner(web.Application(), end_s=1)
    await runner.setup()
    return runner, await http_server.listen(runner, host, 0, PORT)


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
    runner, where = await serve()
    host, _, port = where.rpartition(":")
    with capture_logs() as logged:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(WHOLE)
        await reader.readuntil(b"404: Not Found")
        writer.write(unreadable)
        assert b"400" in await reader.read()
        writer.close()
    await runner.cleanup()
    assert [entry["event"] for entry in logged] == ["http_fault"]
    assert PROMPT.decode() not in f"{logged}{caplog.text}{capfd.readouterr()}"


async def test_an_address_that_is_not_of_this_machine_is_told_from_a_port_that_is_taken():
    with pytest.raises(DependencyDown, match="RAMPMETER_DOOR__HOST to an address of this machine"):
        await serve("192.0.2.1")
    runner, where = await serve()
    with pytest.raises(DependencyDown, match="End the process that holds it"):
        await http_server.listen(runner, "127.0.0.1", int(where.rpartition(":")[2]), PORT)
