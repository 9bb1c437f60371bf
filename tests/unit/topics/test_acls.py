"""The rights that follow from the catalogue."""

from topics import acls, catalog
from topics.settings import Settings, Topics


def lines(process, **fields):
    return [line for line in acls.needed(Settings(**fields), ["p.replies.acme", "p.own.*"]) if line.process == process]


def allowed(found, operation, name):
    return any(
        operation in line.operations and (name.startswith(line.name) if line.is_prefix else name == line.name)
        for line in found
        if line.resource == "topic"
    )


def test_every_reader_and_writer_of_the_catalogue_may_read_and_write():
    settings = Settings(topics=Topics(prefix="p.", tenants=("acme",)))
    may = {process: lines(process, topics=settings.topics) for process in acls.PROCESSES}
    for topic in catalog.topics(settings):
        for process in topic.readers:
            assert allowed(may[process], "READ", topic.name), (process, topic.name)
        for process in topic.writers:
            assert allowed(may[process], "WRITE", topic.name), (process, topic.name)


def test_nobody_but_streams_writes_work_and_producers_write_only_requests_and_orders():
    settings = Settings(topics=Topics(prefix="p."))
    for process in acls.PROCESSES:
        may = allowed(lines(process, topics=settings.topics), "WRITE", "p.lanes.default.high.short")
        assert may == (process == "streams")
    upstream = lines("upstream", topics=settings.topics)
    written = {line.name for line in upstream if "WRITE" in line.operations}
    assert written == {spot.topic for spot in catalog.landings(settings)} | {"p.control"}
    assert not allowed(upstream, "READ", "p.decisions")


def test_only_its_user_writes_to_a_tenants_own_topics():
    upstream = lines("upstream", topics=Topics(prefix="p.", tenants=("acme", "blue")))
    own = {line.name for line in upstream if line.tenant == "acme"}
    assert own == {line.name for line in upstream if line.name.startswith("p.requests.acme.")}
    assert len(own) == 6
    assert {line.operations for line in upstream if line.tenant} == {("DESCRIBE", "WRITE")}


def test_a_name_that_begins_like_another_is_not_covered_by_it():
    own = lines("upstream", topics=Topics(prefix="p.", tenants=("acme",)))
    assert not any(line.is_prefix and line.name.startswith("p.requests") for line in own)


def test_answers_may_go_where_the_lists_say():
    for process in ("streams", "gpu_consumers"):
        mine = lines(process, topics=Topics(prefix="p."))
        for name in ("p.replies", "p.replies.blue", "p.replies.acme", "p.own.one"):
            assert allowed(mine, "WRITE", name)
        assert not allowed(mine, "WRITE", "p.elsewhere")
