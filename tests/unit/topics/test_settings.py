import json

import pytest

from streams.settings import StreamsSettings
from topics import settings
from topics.errors import ConfigError
from topics.settings import Settings


def load(monkeypatch, kind=Settings, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(f"RAMPMETER_{name}", value)
    return settings.load(kind)


def test_all_problems_are_reported_at_once_with_their_variables(monkeypatch):
    with pytest.raises(ConfigError) as caught:
        load(
            monkeypatch,
            StreamsSettings,
            REDIS__URL="http://x",
            REDIS__TIMEOUT_S="-1",
            STATUS_PORT="70000",
            POOLS="{broken",
            TOPICS__DEFER_DELAYS_S="1,2",
            STREAMS__POLICY="lifo",
            STREAMS__GLOBAL_BUDGET__REFILL_UNITS_PER_S="many",
            STREAMS__NO_SUCH="1",
        )
    named = {problem.split(" ")[0] for problem in caught.value.problems}
    assert named == {
        "RAMPMETER_REDIS__URL",
        "RAMPMETER_REDIS__TIMEOUT_S",
        "RAMPMETER_STATUS_PORT",
        "RAMPMETER_POOLS",
        "RAMPMETER_TOPICS__DEFER_DELAYS_S",
        "RAMPMETER_STREAMS__POLICY",
        "RAMPMETER_STREAMS__GLOBAL_BUDGET__REFILL_UNITS_PER_S",
        "RAMPMETER_STREAMS__NO_SUCH",
    }


def test_an_error_does_not_repeat_the_value(monkeypatch):
    with pytest.raises(ConfigError) as caught:
        load(monkeypatch, REDIS__URL="http://:hunter2@x")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("STREAMS__TENANT_BUDGET", '{"refill_units_per_s": 1e999}', "finite number"),
        ("STREAMS__NO_SUCH", "1", "there is no such setting"),
        ("TOPICS__REPLY_TOPICS", "replies.x", "it is JSON"),
        ("STREAMS__TENANT_BUDGET", "foo", "it is JSON"),
    ],
)
def test_an_error_says_what_to_do(monkeypatch, variable, value, said):
    with pytest.raises(ConfigError) as caught:
        load(monkeypatch, StreamsSettings, **{variable: value})
    assert [said in problem for problem in caught.value.problems] == [True]


def test_kafka_variables_are_client_properties(monkeypatch):
    loaded = load(
        monkeypatch, KAFKA__BOOTSTRAP_SERVERS="a:1,b:2", KAFKA__SASL_MECHANISM="PLAIN", KAFKA__SSL_CA_LOCATION="/ca"
    )
    assert loaded.kafka == {"bootstrap.servers": "a:1,b:2", "sasl.mechanism": "PLAIN", "ssl.ca.location": "/ca"}


def test_the_environment_wins_over_the_file_and_the_file_over_defaults(monkeypatch, tmp_path):
    file = tmp_path / "rampmeter.toml"
    file.write_text('status_port = 1\nlog_level = "debug"\n[topics]\nprefix = "file."\nlanding_partitions = 9\n')
    loaded = load(monkeypatch, CONFIG=str(file), STATUS_PORT="2", TOPICS__PREFIX="env.")
    assert (loaded.status_port, loaded.log_level) == (2, "debug")
    assert (loaded.topics.prefix, loaded.topics.landing_partitions, loaded.topics.reply_partitions) == ("env.", 9, 4)


def test_a_missing_file_is_a_problem(monkeypatch):
    with pytest.raises(ConfigError, match="RAMPMETER_CONFIG=/no/such: No such file"):
        load(monkeypatch, CONFIG="/no/such")


def test_a_broken_file_is_a_problem(monkeypatch, tmp_path):
    file = tmp_path / "broken.toml"
    file.write_text("status_port = ")
    with pytest.raises(ConfigError):
        load(monkeypatch, CONFIG=str(file))


def test_models_must_name_pools_that_exist(monkeypatch):
    with pytest.raises(ConfigError, match=r"models\.llama-3-8b\.pool names the pool 'default'") as caught:
        load(monkeypatch, POOLS=json.dumps({"cpu": {}}), DEFAULT_MODEL="gpt")
    assert "default_model 'gpt' is not in models" in str(caught.value)


def test_secrets_are_hidden_when_shown(monkeypatch):
    loaded = load(
        monkeypatch,
        KAFKA__SASL_PASSWORD="hunter2",
        KAFKA__SSL_KEY_PASSWORD="hunter2",
        KAFKA__SASL_JAAS_CONFIG="hunter2",
        REDIS__URL="redis://user:hunter2@host:1/0",
    )
    text = settings.redacted_json(loaded)
    assert "hunter2" not in text
    assert "redis://***@host:1/0" in text


def test_the_settings_hash_follows_what_decides_and_neither_secrets_nor_addresses(monkeypatch):
    first = load(monkeypatch, KAFKA__SASL_PASSWORD="a").short_hash()
    assert load(monkeypatch, KAFKA__SASL_PASSWORD="b", STATUS_PORT="9000", LOG_LEVEL="error").short_hash() == first
    assert load(monkeypatch, DEDUPE_WINDOW_S="5").short_hash() != first


def test_settings_are_frozen(monkeypatch):
    with pytest.raises(ValueError, match="frozen"):
        load(monkeypatch).status_port = 3


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_out_of_range_is_refused(monkeypatch, port):
    with pytest.raises(ConfigError, match="RAMPMETER_STATUS_PORT"):
        load(monkeypatch, STATUS_PORT=port)
