"""Each process does its whole work with no more rights than the list of `rampmeter doctor --acls`."""

import socket
import sys
import urllib.request

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from autoscaler.fleet import FleetReader
from rampmeter import audit, lag
from rampmeter.explain import gathering
from streams.settings import StreamsSettings
from tests.support import started
from tests.support.gpu import Consumer
from tests.support.streams_worker import StreamsWorker, TopicLog, chat, free_port, send, wait_until
from topics import acls, admin, clients, codec
from topics.clock import SystemClock
from topics.errors import LagUnavailable
from topics.local_broker import LocalBroker
from topics.records import Reply
from topics.settings import Settings, load

PASSWORD = "motorway"
KINDS = {
    "topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactional-id": ResourceType.TRANSACTIONAL_ID,
}  # fmt: skip
COUNT = 5


@pytest.fixture
def guarded(tmp_path):
    """A broker that allows nobody anything; (its open address for us, the one that wants a name and a password)."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        plain, controller = one.getsockname()[1], other.getsockname()[1]
    port = free_port()
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},GUARDED://127.0.0.1:{port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,GUARDED:SASL_PLAINTEXT",
        "listener.name.guarded.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.guarded.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with LocalBroker(tmp_path / "kafka", port=plain, properties=properties):
        yield f"127.0.0.1:{plain}", f"127.0.0.1:{port}"


def grant(address, lines):
    granting = AdminClient({"bootstrap.servers": address})
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    users = [UserScramCredentialUpsertion(name, credential, PASSWORD.encode()) for name in acls.PROCESSES]
    rights = list(bindings(AclBinding, lines))
    for future in (*granting.alter_user_scram_credentials(users).values(), *granting.create_acls(rights).values()):
        future.result(timeout=20)


def withdraw(address, lines):
    withdrawing = AdminClient({"bootstrap.servers": address})
    for future in withdrawing.delete_acls(list(bindings(AclBindingFilter, lines))).values():
        future.result(timeout=20)


def bindings(kind, lines):
    for line in lines:
        for operation in line.operations:
            yield kind(
                KINDS[line.resource], line.name,
                ResourcePatternType.PREFIXED if line.is_prefix else ResourcePatternType.LITERAL,
                f"User:{line.process}", "*", AclOperation[operation], AclPermissionType.ALLOW,
            )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_topic_that_may_not_be_read_is_unknown_until_it_may(guarded, stack_env):
    open_address, address = guarded
    kafka = {"bootstrap.servers": open_address, "sasl.username": "autoscaler", "sasl.password": PASSWORD}
    kafka |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
    admin.apply(Settings(kafka={"bootstrap.servers": open_address}))
    settings = Settings(kafka=kafka | {"bootstrap.servers": address})
    seeing, reading = (
        acls.Acl("autoscaler", "topic", settings.topic("telemetry"), is_prefix=False, operations=(right,))
        for right in ("DESCRIBE", "READ")
    )
    grant(open_address, [seeing])

    def problem():
        try:
            fleet.read()
        except LagUnavailable as error:
            return str(error)
        return ""

    with FleetReader(settings, SystemClock(), 5.0, stale_s=60.0) as fleet:
        for _ in range(2):
            wait_until(lambda: "authorization failed" in problem(), 30, problem)
            grant(open_address, [reading])
            wait_until(lambda: not problem(), 30, problem)
            withdraw(open_address, [reading])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_process_does_its_work_with_the_listed_rights_and_no_others(guarded, stack_env, tmp_path, monkeypatch):
    open_address, address = guarded
    shared = {
        **stack_env,
        "RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": address,
        "RAMPMETER_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "RAMPMETER_KAFKA__SASL_MECHANISM": "SCRAM-SHA-512",
        "RAMPMETER_KAFKA__SASL_PASSWORD": PASSWORD,
        "RAMPMETER_STREAMS": '{"tenant_budget": {"refill_units_per_s": 1e6, "warm_up_s": 0}}',
        "RAMPMETER_AUTOSCALER__TARGET": "dry-run",
    }
    for name, value in shared.items():
        monkeypatch.setenv(name, value)

    def as_user(name):
        monkeypatch.setenv("RAMPMETER_KAFKA__SASL_USERNAME", name)
        return load(StreamsSettings), {**shared, "RAMPMETER_KAFKA__SASL_USERNAME": name}

    operator, _ = as_user("rampmeter")
    clients.redis_sync(operator).flushdb()
    grant(open_address, acls.needed(operator))
    admin.apply(operator)
    worker = StreamsWorker(as_user("streams")[1], tmp_path / "streams.log").start()
    as_user("gpu_consumers")
    consumer = Consumer(tmp_path / "gpu.log", engine="simulated").wait_ready()
    scaler_port = free_port()
    scaler_env = {**as_user("autoscaler")[1], "RAMPMETER_STATUS_PORT": str(scaler_port)}
    with (tmp_path / "scaler.log").open("wb") as log:
        scaler = started.popen([sys.executable, "-m", "autoscaler"], env=scaler_env, stdout=log, stderr=log)

    upstream, _ = as_user("upstream")
    records = [(chat(simulated_output_tokens=5), b"acme", [("rampmeter_id", b"r%d" % n)], 0) for n in range(COUNT)]
    send(upstream, "requests.medium.short", records)
    answers = TopicLog(upstream, "replies")
    told = answers.until(lambda found: found if len(found) >= COUNT else None, 60)
    assert {codec.decode_answer(m.value()).outcome for m in told if isinstance(codec.decode_answer(m.value()), Reply)}
    answers.close()
    with pytest.raises(AssertionError, match="TOPIC_AUTHORIZATION_FAILED"):
        send(upstream, "decisions", [(b"{}", b"r1", [], 0)])

    def settled():
        return not [found for found in gathering.gather(operator, 0.0).timelines() if found.missing]

    wait_until(settled, 60)
    assert len(list(gathering.gather(operator, 0.0).timelines())) == COUNT
    assert audit.read(operator, 0.0).outcomes["completed"] == COUNT
    assert sum(row.lag_records for row in lag.read(operator)) == 0

    def scaler_sees():
        with urllib.request.urlopen(f"http://127.0.0.1:{scaler_port}/metrics", timeout=5) as shown:
            return 'rampmeter_autoscaler_lag_available{pool="default"} 1.0' in shown.read().decode()

    wait_until(scaler_sees, 30, (tmp_path / "scaler.log").read_text)

    logs = worker.log() + consumer.log() + (tmp_path / "scaler.log").read_text()
    scaler.terminate()
    assert (scaler.wait(30), consumer.terminate(), worker.stop()) == (0, 0, 0)
    assert "authoriz" not in logs.lower()
