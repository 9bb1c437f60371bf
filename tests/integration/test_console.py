"""The web console on what a real broker, Redis, worker and consumer tell, and in a real browser."""

import json
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient

from tests.support import browser
from tests.support.console import TOKEN, Console
from tests.support.gpu import Consumer
from tests.support.streams_worker import Site, StreamsWorker, chat, send, wait_until
from topics import catalog, codec
from topics.records import ControlAction, Priority, Reply

CANARY = "CANARY-prompt-nobody-may-see"
ENOUGH = {"refill_units_per_s": 1e6, "warm_up_s": 0}
POOR = {"refill_units_per_s": 1.0, "burst_s": 100.0, "warm_up_s": 0}
OPEN = "still-open"
HARDENED = ("Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy")


@pytest.fixture(scope="module")
def site(broker, redis_server, tmp_path_factory):
    """A console that takes orders, beside what it watches: some requests ended, one runs on."""
    folder = tmp_path_factory.mktemp("console")
    made = Site(
        broker, redis_server.url, 9, tenant_budget=ENOUGH, tenant_budgets={"poor": POOR}, global_budget=ENOUGH,
        pool_budget=ENOUGH, class_budgets=dict.fromkeys(Priority, ENOUGH), max_deferral_s=6,
    )  # fmt: skip
    made.folder = folder
    worker = StreamsWorker(made.env, folder / "worker.log").start(wait=False)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.env.items():
            if name != "RAMPMETER_STREAMS":
                patch.setenv(name, value)
        consumer = Consumer(folder / "gpu.log", engine="simulated", speed=2)
    (folder / "token").write_text(f"{TOKEN}\n")
    made.console = Console(
        made.env, folder, token_file=folder / "token", period_s=0.5, max_clients=4, hosts='["console.acme.test"]'
    )
    try:
        wait_until(worker.is_ready, 60, worker.log)
        consumer.wait_ready()
        fill(made)
        yield made
    finally:
        assert made.console.stop() == 0, made.console.log()
        consumer.kill()
        worker.stop()
        made.close()


def fill(site):
    log = site.log("replies")
    records = [asked(f"done-{n}", "acme", max_tokens=40, simulated_output_tokens=20) for n in range(8)]
    records += [asked("too-much", "poor", max_tokens=4000)]
    records += [asked(OPEN, "slowly", max_tokens=16_000, simulated_output_tokens=16_000)]
    send(site.settings, "requests.medium.short", records)

    def are_answered(messages):
        answers = [codec.decode_answer(message.value()) for message in messages]
        return sum(isinstance(answer, Reply) for answer in answers) >= len(records) - 1

    log.until(are_answered, 60)


def asked(request_id, tenant, **body):
    headers = [("rampmeter_id", request_id.encode()), ("rampmeter_tenant", tenant.encode())]
    return chat(text=CANARY, **body), tenant.encode(), headers, 0


@pytest.fixture
def console(site):
    return site.console


def tenants(page):
    return {line["name"]: line for line in page["tenants"]}


def pool(page, name="default"):
    return next(one for one in page["pools"] if one["name"] == name)


def is_whole(told):
    """Everything was read, and the request that is still open has begun: each source at its own moment."""
    page, named = told.page, tenants(told.page)
    return (
        all(source["problem"] is None for source in page["sources"])
        and pool(page)["records"]
        and page["consumers"]
        and page["consumers"][0]["running"]
        and {"acme", "poor", "slowly"} <= named.keys()
        and named["acme"]["lately"]["requests"] >= 8
        and named["poor"]["lately"]["rejected"]
        and ended(told.waits) >= 8
    )


def ended(waits):
    return sum(point["ended"].get("medium", 0) for point in waits)


def test_a_reading_has_lanes_budgets_tenants_consumers_and_waits(console):
    page, waits, queues = console.until(is_whole)
    assert pool(page)["records"] >= 1
    assert pool(page)["serving"] == 1
    assert {lane["length"] for lane in pool(page)["lanes"]} == {"short", "long"}
    assert pool(page)["oldest_s"] > 0
    assert (pool(page, "cpu")["records"], pool(page, "cpu")["serving"]) == (0, 0)
    acme, poor = tenants(page)["acme"], tenants(page)["poor"]
    assert (acme["lately"]["requests"], acme["lately"]["rejected"]) == (8, 0)
    assert acme["lately"]["used_units_per_s"] > 0
    assert 0 < acme["units"] <= acme["cap_units"], "a new bucket starts empty and fills"
    assert (poor["lately"]["rejected"], poor["refill_units_per_s"]) == (1, 1.0)
    assert {line["level"] for line in page["budgets"]} == {"global", "pool", "class"}
    (consumer,) = page["consumers"]
    assert (consumer["state"], consumer["pool"]) == ("ready", "default")
    assert (consumer["temperature_c"], consumer["memory_ratio"]) == (None, None), "there is no GPU: unknown, not 0"
    assert ended(waits) == 8
    assert all(point["waits_s"]["medium"]["p50"] <= point["waits_s"]["medium"]["p99"] for point in waits)
    assert queues[-1]["queued"]["medium"] >= 1


def test_all_pages_share_one_reading(console):
    one, other = console.events(), console.events()
    with closing(one), closing(other):
        seen = [[next(stream) for _ in range(4)] for stream in (one, other)]
    told = [{json.dumps(data) for name, data in events if name == "reading"} for events in seen]
    assert told[0] & told[1]


def test_a_search_tells_what_explain_tells_and_no_text(console, site):
    status, _, body = console.call("api/request?id=done-1")
    told = json.loads(body)
    assert (status, told["id"], told["state"], told["tenant"]) == (200, "done-1", "completed", "acme")
    assert {"received", "priced", "admitted", "placed", "started", "ended", "answered"} <= {
        event["step"] for event in told["events"]
    }
    assert console.call("api/request?id=nobody")[0] == 404
    for bad in ("api/request", "api/request?id=", "api/request?id=%3Cscript%3E", f"api/request?id={'x' * 500}"):
        assert console.call(bad)[0] == 400, bad


def test_every_answer_is_hardened_and_none_holds_a_prompt(console):
    paths = ("", "static/console.js", "static/vendor/uPlot.iife.min.js", "api/console", "api/request?id=done-1",
             f"api/request?id={OPEN}", "api/request?id=too-much", "nowhere", "static/../settings.py")  # fmt: skip
    for path in paths:
        _, headers, body = console.call(path)
        assert all(headers.get(name) for name in HARDENED), path
        assert CANARY.encode() not in body, path
    policy = console.call("")[1]["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<script>" not in console.call("")[2].decode()
    with closing(console.follow()) as stream:
        assert all(stream.headers.get(name) for name in HARDENED)
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        assert not any(CANARY.encode() in stream.readline() for _ in range(12))
    assert CANARY not in console.log()


ORDER = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (f"{CANARY}\r\n\r\n", 400),
        (f"GET / HTTP/1.1\r\nA: {CANARY * 400}\r\n\r\n", 400),
        (f"POST /api/orders HTTP/1.1\r\n{ORDER}Content-Encoding: gzip\r\nContent-Length: 8\r\n\r\n{CANARY[:8]}", 400),
        (f"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: {CANARY}\r\n\r\n", 417),
        ("PUT /api/console HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    ],
    ids=["no request line", "long header", "no gzip", "bad expectation", "wrong method"],
)
def test_what_is_refused_unread_is_said_as_all_else_hardened_and_repeats_nothing(console, sent, status):
    answered, headers, body = console.answer_to(sent.encode())
    assert (answered, list(json.loads(body))) == (status, ["error"])
    assert all(headers.get(name) for name in HARDENED)
    assert headers.get("Allow") == ("GET,HEAD" if status == 405 else None)
    assert CANARY[:8] not in f"{headers}{body}{console.log()}"


def test_only_files_of_the_page_are_served(console):
    for path in ("static/../app.py", "static/%2e%2e/app.py", "static/vendor/", "static/settings.py"):
        assert console.call(path)[0] == 404, path


def test_a_foreign_name_for_this_machine_is_no_name_of_the_console(console):
    assert console.call("api/console", Host="evil.example")[0] == 421
    for name in ("localhost:8081", "[::1]:8081", "127.0.0.1", "Console.acme.test"):
        assert console.call("api/console", Host=name)[0] == 200, name


@pytest.mark.parametrize(("site_of_page", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 404)])
def test_a_foreign_page_cannot_have_the_log_searched(console, site_of_page, status):
    assert console.call("api/request?id=nobody", Sec_Fetch_Site=site_of_page)[0] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong-token-of-sixteen"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Cookie": f"token={TOKEN}"}, 401),
        ({"Authorization": f"Bearer {TOKEN}", "Content_Type": "text/plain"}, 415),
        ({"Authorization": f"Bearer {TOKEN}", "Content_Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_an_order_needs_the_token_in_its_header_and_no_form_can_send_it(console, headers, status):
    body = {"action": "pause", "kind": "tenant", "name": "acme"}
    assert (
        console.call(f"api/orders?token={TOKEN}", body, **{"Content_Type": "application/json", **headers})[0] == status
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        {"action": "pause", "kind": "tenant"},
        {"action": "limits", "kind": "tenant", "name": "acme"},
        {"action": "pause", "kind": "pool", "name": "nowhere"},
        {"action": "pause", "kind": "tenant", "name": "<b>"},
        {"action": "drain", "kind": "tenant", "name": "default"},
        {"action": "drain", "kind": "consumer", "name": "default"},
        {"action": "drain", "kind": "pool", "name": "cpu"},
        {"action": "cancel", "kind": "tenant", "name": "acme"},
        {"action": "pause", "kind": "tenant", "name": "acme", "more": 1},
    ],
)
def test_what_is_no_order_is_refused(console, body):
    status, told = console.order(body)
    assert status == 400
    assert told["error"]


def test_a_body_that_is_too_large_for_an_order_is_refused(console):
    assert console.order(b"x" * 10_000)[0] == 413


def test_orders_reach_the_control_topic_and_show(console, site):
    status, told = console.order({"action": "pause", "kind": "class", "name": "low"})
    (order,) = told["orders"]
    assert (status, order["action"], order["kind"], order["name"]) == (202, "pause", "class", "low")
    page, _, _ = console.until(lambda told: any(line["pause"] for line in told.page["budgets"]))
    assert next(line for line in page["budgets"] if line["pause"])["name"] == "low"
    assert console.order({"action": "resume", "kind": "class", "name": "low"})[0] == 202
    given = [codec.decode_control(message.value()) for message in site.log("control").poll() if message.value()]
    assert [one.action for one in given if one.name == "low"] == [ControlAction.PAUSE, ControlAction.RESUME]
    assert TOKEN not in console.log()


def test_as_many_pages_as_allowed_and_places_come_back(console):
    streams = [console.follow() for _ in range(4)]
    assert console.call("api/readings")[0] == 503
    for stream in streams:
        stream.close()
    wait_until(lambda: closed(console.follow()), 20)


def closed(stream):
    stream.close()
    return stream.status == 200


def test_without_a_token_it_is_read_only_and_it_ends_while_pages_are_open(site):
    console = Console(site.env, site.folder)
    assert json.loads(console.call("api/console")[2])["can_order"] is False
    assert console.order({"action": "pause", "kind": "tenant", "name": "acme"})[0] == 403
    assert console.call("api/orders", b"{}", Authorization="Bearer ")[0] == 403
    with closing(console.follow()) as stream:
        assert stream.readline().startswith(b"event: history")
        assert console.stop() == 0


def test_the_last_good_reading_stays_with_its_time_when_lanes_cannot_be_read(settings, stack_env, tmp_path):
    console = Console(stack_env, tmp_path, read_timeout_s=1)

    def lanes(page):
        return next(source for source in page["sources"] if source["name"] == "lanes")

    good, _, _ = console.until(lambda told: lanes(told.page)["problem"] is None)
    deleting = AdminClient({"bootstrap.servers": settings.kafka["bootstrap.servers"]})
    for done in deleting.delete_topics(catalog.lanes(settings, "default")).values():
        done.result()
    bad, _, _ = console.until(lambda told: lanes(told.page)["problem"] is not None)
    assert "default" in lanes(bad)["problem"]
    assert lanes(good)["good_s"] <= lanes(bad)["good_s"] < bad["now_s"]
    assert pool(bad)["records"] == 0, "as last read"
    assert console.stop() == 0


@pytest.mark.skipif(browser.FOUND is None, reason=browser.INSTALL)
@pytest.mark.asyncio
async def test_a_person_sees_it_all_finds_a_request_and_pauses_a_tenant(console, site, tmp_path):
    send(site.settings, "requests.medium.short", [asked(f"seen-{n}", "acme", max_tokens=9) for n in range(3)])
    async with browser.page(tmp_path) as page:
        await page.look(1400)
        await page.open(console.url)
        await page.until("document.querySelector('#tenants tbody tr') && document.querySelector('#consumers tbody tr')")
        await page.until("document.querySelector('#connection').innerText.startsWith('live')")
        assert "acme" in await page.text("#tenants")
        assert "\u2013" in await page.text("#consumers"), "no GPU tells its temperature"
        assert await page.run("document.querySelectorAll('.chart canvas').length") == 2
        assert await page.run("document.querySelectorAll('td button').length") == 0, "read-only until unlocked"
        for width, scheme in ((1400, "light"), (1400, "dark"), (400, "light")):
            await page.look(width, scheme=scheme)
            assert await page.run("document.documentElement.scrollWidth <= innerWidth"), f"too wide at {width}"
            assert (await page.picture()).startswith(b"\x89PNG")
        await page.look(1400)
        await page.run("document.querySelector('#search-id').value = 'done-1'")
        await page.run("document.querySelector('#search button').click()")
        await page.until("document.querySelectorAll('.steps li').length > 5")
        assert "answered completed" in await page.text("#found")
        await unlock(page, "wrong-token-of-sixteen")
        await page.until("document.querySelector('#token-fault').innerText")
        assert "not the token" in await page.text("#token-fault")
        await unlock(page, TOKEN)
        await page.until("document.querySelector('#tenants td button')")
        await press(page, "acme", "Pause…")
        await page.until("[...document.querySelectorAll('#tenants tr')].some(row => row.innerText.includes('paused'))")
        await press(page, "acme", "Resume…")
        assert CANARY not in await page.run("document.documentElement.outerHTML")
        # What a browser says of the wrong token, and nothing else: no fault of the page, nothing its policy forbade.
        assert [fault for fault in page.faults if fault.get("source") != "network"] == []


async def unlock(page, token):
    await page.run("document.querySelector('#token-dialog').open || document.querySelector('#unlock').click()")
    await page.run(f"document.querySelector('#token').value = '{token}'")
    await page.run("document.querySelector('#token-form .main').click()")


async def press(page, tenant, label):
    """An order about a tenant, and the question before it."""
    rows = "[...document.querySelectorAll('#tenants tbody tr')]"
    button = f"{rows}.find(row => row.innerText.includes('{tenant}'))?.querySelector('button')"
    await page.until(f"{button}?.innerText === '{label}'")
    await page.run(f"{button}.click()")
    await page.until("document.querySelector('#confirm-dialog').open")
    await page.run("document.querySelector('#confirm-do').click()")
    await page.until("!document.querySelector('#confirm-dialog').open")


@pytest.mark.skipif(browser.FOUND is None, reason=browser.INSTALL)
@pytest.mark.asyncio
async def test_what_cannot_be_read_is_said_and_so_is_a_console_that_is_gone(redis_server, tmp_path):
    nowhere = {"RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "RAMPMETER_REDIS__URL": redis_server.url}
    console = Console(nowhere, tmp_path, read_timeout_s=0.5, period_s=0.5)
    async with browser.page(tmp_path) as page:
        await page.open(console.url)
        await page.until("document.querySelector('#banner').innerText.includes('not read yet')")
        assert "The lanes cannot be read" in await page.text("#banner")
        assert "sources not read" in await page.text("#connection")
        told = await page.text("#totals")
        assert "0" not in told, "what was never read is unknown, not zero"
        console.process.kill()
        await page.until("document.body.classList.contains('is-cut')")
        assert "The figures are of" in await page.text("#banner")
        assert await page.text("#connection") == "no connection"
