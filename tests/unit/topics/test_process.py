import subprocess
import sys

import pytest
from confluent_kafka import KafkaError, KafkaException

from topics import process
from topics.errors import ConfigError, DependencyDown


def test_the_status_of_main_is_passed_on():
    assert process.exit_status(lambda: 0) == 0
    assert process.exit_status(lambda: process.EXIT_FINDING) == 1


def test_every_configuration_problem_is_said_and_the_status_is_78(capsys):
    def main():
        raise ConfigError(["A is wrong", "B is wrong"])

    assert process.exit_status(main) == 78
    assert capsys.readouterr().err == "configuration: A is wrong\nconfiguration: B is wrong\n"


def test_a_dependency_that_is_down_is_said_with_a_fix_and_the_status_is_69(capsys):
    def main():
        raise DependencyDown("Redis does not answer", "redis://h:1", "Start it.")

    assert process.exit_status(main) == 69
    assert capsys.readouterr().err == "unavailable: Redis does not answer (redis://h:1). Start it.\n"


def test_a_client_that_has_given_up_is_not_laid_to_the_broker(capsys):
    def main():
        raise KafkaException(KafkaError(KafkaError._FATAL, "Fatal error: Broker: The instance ID is still used"))

    assert process.exit_status(main) == 70
    told = capsys.readouterr().err
    assert told.startswith("Kafka client: Fatal error: Broker: The instance ID is still used. This client has given up")
    assert "GROUP_INSTANCE_ID" in told


def test_a_broker_that_is_away_is_said_and_the_status_is_69(capsys):
    def main():
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "refused"))

    assert process.exit_status(main) == 69
    assert capsys.readouterr().err == "unavailable: Kafka: refused. Look at the broker, then try again.\n"


def test_a_bug_is_not_hidden():
    def main():
        raise KeyError("x")

    with pytest.raises(KeyError):
        process.exit_status(main)


def test_a_full_collection_no_longer_looks_at_what_start_up_made():
    program = (
        "import gc; from topics import process, settings, codec; process.keep_start_up();"
        "print(gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 1000)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "True True\n"


def test_an_end_that_something_holds_up_is_cut_short_with_status_0():
    held = "import time; from topics import process; process.end_within(0.1); time.sleep(600)"
    done = subprocess.run([sys.executable, "-c", held], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "end_cut_short" in done.stdout + done.stderr
