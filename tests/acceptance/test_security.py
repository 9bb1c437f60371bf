"""Every client property passes through: the whole path against a broker that wants TLS and a password."""

import json
import socket

import pytest
import trustme
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.support import command
from topics.local_broker import LocalBroker

USER, PASSWORD = "rampmeter", "motorway"


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """(variables, plain address) of a broker with one plain listener for us and one with SASL_SSL and SCRAM."""
    folder = tmp_path_factory.mktemp("secure")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "broker.pem").write_bytes(pem + b"".join(part.bytes() for part in certificate.cert_chain_pems))
    plain, controller, guarded = _free_ports(3)
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},GUARDED://127.0.0.1:{guarded}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,GUARDED:SASL_SSL",
        "listener.name.guarded.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.guarded.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.guarded.ssl.keystore.type": "PEM",
        "listener.name.guarded.ssl.keystore.location": str(folder / "broker.pem"),
    }
    with LocalBroker(folder / "kafka", port=plain, properties=properties):
        _add_user(f"127.0.0.1:{plain}")
        yield {
            "RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{guarded}",
            "RAMPMETER_KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
            "RAMPMETER_KAFKA__SASL_MECHANISM": "SCRAM-SHA-512",
            "RAMPMETER_KAFKA__SASL_USERNAME": USER,
            "RAMPMETER_KAFKA__SASL_PASSWORD": PASSWORD,
            "RAMPMETER_KAFKA__SSL_CA_LOCATION": str(folder / "ca.pem"),
            "RAMPMETER_KAFKA__CLIENT_RACK": "hall-1",
        }


def _add_user(address):
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": address})  # named, since the call dies with it
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(timeout=20)


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def test_the_whole_path_runs_over_sasl_and_tls(secure, tmp_path):
    with command.Up("--engines", "1", "--no-llama", cwd=tmp_path, env=secure) as up:
        answer = command.one_line_of_json(up.run("submit", "hello", "--json"))
        lag = up.run("lag", "--json")
    assert answer["outcome"] == "completed"
    assert lag.returncode == 0, lag.stderr
    assert PASSWORD not in up.said() + "".join(log.read_text() for log in tmp_path.glob(".rampmeter/logs/*"))


def test_a_wrong_password_is_a_clear_end(secure, tmp_path):
    wrong = {**secure, "RAMPMETER_KAFKA__SASL_PASSWORD": "tollbooth"}
    done = command.run("topics", "check", cwd=tmp_path, env=wrong)
    assert done.returncode == 69, done.stderr
    assert "RAMPMETER_KAFKA__" in done.stderr
    assert "tollbooth" not in done.stderr


def test_settings_are_printed_without_the_password(secure, tmp_path):
    printed = command.run("config", "print", "--json", cwd=tmp_path, env=secure)
    assert PASSWORD not in printed.stdout
    assert json.loads(printed.stdout)
