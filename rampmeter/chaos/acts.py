"""What incidents do.  An act does its next bit each time it is asked, and undoes everything when it is closed."""

import contextlib
from collections.abc import Callable, Generator

from prometheus_client import CollectorRegistry

from gpu_consumers.metrics import Readings
from rampmeter import targets
from rampmeter.chaos.scene import Kind, Scene, go_on, stop
from rampmeter.control import Change
from rampmeter.load import Collector
from topics import clients, keys
from topics.local_process import HOST
from topics.status import StatusServer

Steps = Generator[None, None, None]
Act = Callable[[Scene], Steps]
"""Asked several times a second."""

_STILL_S, _AWAKE_S = 4.0, 2.0
"""Shorter than a consumer's session, so that nobody takes over; longer than the 2 s in which shorts should begin."""
_GATHER_S = 2.0
"""Longer than a short request takes that was admitted before, so that its usage waits; shorter than a session."""


def together(*acts: Act) -> Act:
    """All of them at once; undone in the reverse order."""

    def act(scene: Scene) -> Steps:
        with contextlib.ExitStack() as held:
            running = [held.enter_context(contextlib.closing(one(scene))) for one in acts]
            while True:
                for one in running:
                    next(one)
                yield

    return act


def sending(kind: Kind, per_s: float) -> Act:
    """Requests at a steady rate."""

    def act(scene: Scene) -> Steps:
        started_s, sent = scene.clock.mono_s(), 0
        while True:
            while sent <= (scene.clock.mono_s() - started_s) * per_s:
                scene.send(kind)
                sent += 1
            yield

    return act


def flooding(kind: Kind, per_s: float, most: int) -> Act:
    """As many requests as there is room for below `most` that are unanswered: more would only pass their deadlines."""

    def act(scene: Scene) -> Steps:
        before_s = scene.clock.mono_s()
        with contextlib.closing(Collector(scene.site.settings, scene.clock)) as replies:
            while True:
                now_s = scene.clock.mono_s()
                answered = sum(identity.startswith(scene.tenant) for identity in list(replies.answers))
                room = most - (scene.sent - answered)
                for _ in range(min(room, int((now_s - before_s) * per_s))):
                    scene.send(kind)
                before_s = now_s
                yield

    return act


def piling(kind: Kind, per_s: float, most: int, *, cancels: bool = False) -> Act:
    """That many requests and no more; `cancels` those that are there at the end."""

    def act(scene: Scene) -> Steps:
        one_by_one = sending(kind, per_s)(scene)
        try:
            while scene.sent < most:
                next(one_by_one)
                yield
            while True:
                yield
        finally:
            for number in range(1, scene.sent + 1 if cancels else 1):
                scene.cancel(number)

    return act


def garbage(per_s: float) -> Act:
    """Records that nobody can read."""

    def act(scene: Scene) -> Steps:
        started_s, sent = scene.clock.mono_s(), 0
        while True:
            while sent <= (scene.clock.mono_s() - started_s) * per_s:
                scene.send_garbage()
                sent += 1
            yield

    return act


def standing_still(name: str) -> Act:
    """All processes of this name stand still, also those that are started meanwhile."""

    def act(scene: Scene) -> Steps:
        stopped = set[int]()
        try:
            while True:
                for pid in scene.site.pids(name) - stopped:
                    stopped.add(pid)
                    stop(pid)
                yield
        finally:
            for pid in stopped:
                go_on(pid)

    return act


def cutting_off(worker: str, name: str) -> Act:
    """All of `name` stand still, from a moment on at which there is work for `worker` that needs them."""

    def act(scene: Scene) -> Steps:
        with contextlib.ExitStack() as held:
            with contextlib.closing(standing_still(worker)(scene)) as asleep:
                until_s = scene.clock.mono_s() + _GATHER_S
                while scene.clock.mono_s() < until_s:
                    next(asleep)
                    yield
                still = held.enter_context(contextlib.closing(standing_still(name)(scene)))
                next(still)
            yield from still

    return act


def stuttering(name: str) -> Act:
    """They stand still for some seconds again and again."""

    def act(scene: Scene) -> Steps:
        while True:
            with contextlib.closing(standing_still(name)(scene)) as still:
                until_s = scene.clock.mono_s() + _STILL_S
                while scene.clock.mono_s() < until_s:
                    next(still)
                    yield
            until_s = scene.clock.mono_s() + _AWAKE_S
            while scene.clock.mono_s() < until_s:
                yield

    return act


def drill(reading: str, value: float) -> Act:
    """A page of its own tells Prometheus of this reading, as a consumer's would."""

    def act(scene: Scene) -> Steps:
        registry = CollectorRegistry()
        registry.register(Readings({reading: ("A drill of rampmeter chaos.", lambda: value)}))
        page = StatusServer(HOST, 0, live=lambda: None, ready=lambda: None, registry=registry)
        page.start()
        try:
            with targets.drill(scene.site.data_dir, page.port):
                while True:
                    yield
        finally:
            page.stop()

    return act


def later(first: Act, after_s: float) -> Act:
    """It begins when the others have done something."""

    def act(scene: Scene) -> Steps:
        from_s = scene.clock.mono_s() + after_s
        while scene.clock.mono_s() < from_s:
            yield
        yield from first(scene)

    return act


def for_a_while(first: Act, lasts_s: float) -> Act:
    """Only at the beginning."""

    def act(scene: Scene) -> Steps:
        until_s = scene.clock.mono_s() + lasts_s
        with contextlib.closing(first(scene)) as running:
            while scene.clock.mono_s() < until_s:
                next(running)
                yield
        while True:
            yield

    return act


def poor(scene: Scene) -> Steps:
    """The tenant has a budget that is too small for what it sends."""
    scene.limit(Change(refill_units_per_s=1.0, burst_s=60.0))
    try:
        while True:
            yield
    finally:
        scene.limit(Change())


def forgetting_a_ledger(scene: Scene) -> Steps:
    """Redis has lost the mark that its balances are whole, and no worker gets to rebuild them."""
    named = keys.of(scene.site.settings)
    with contextlib.closing(clients.redis_sync(scene.site.settings)) as redis:
        mark = redis.get(named.ledger())
        try:
            while True:
                redis.set(named.rebuild(), "chaos", ex=5)
                redis.delete(named.ledger())
                yield
        finally:
            if mark is not None:
                redis.set(named.ledger(), mark)
            redis.delete(named.rebuild())


def forgetting_a_request(kind: Kind) -> Act:
    """Redis has dropped what one running request holds."""

    def act(scene: Scene) -> Steps:
        identity = scene.send(kind)
        named = keys.of(scene.site.settings)
        key = named.reservation(identity)
        with contextlib.closing(clients.redis_sync(scene.site.settings)) as redis:
            while redis.hget(key, "state") != b"reserved":
                yield
            mark, held = redis.get(named.ledger()), redis.dump(key)
            redis.delete(key)
            try:
                while True:
                    yield
            finally:
                # Into a ledger that was begun anew meanwhile it does not belong.
                if held is not None and redis.get(named.ledger()) == mark:
                    redis.restore(key, 0, held, replace=True)
                scene.cancel(scene.sent)

    return act
