"""The compose file and the image, as far as they can be judged without Docker."""

import re

import pytest
import yaml

from autoscaler.settings import AutoscalerSettings
from docker.render import FOLDER
from gpu_consumers.settings import GpuSettings
from rampmeter.manifests.pods import USER
from rampmeter.manifests.values import STATUS_PORT
from streams.settings import StreamsSettings
from topics.broker_jars import KAFKA_VERSION
from topics.settings import load

COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if "build" in service}
IMAGE = (FOLDER / "Dockerfile").read_text()


def test_all_that_is_ours_runs_and_waits_for_its_topics():
    commands = {name: service["command"] for name, service in OURS.items()}
    assert commands == {
        "topics": ["rampmeter", "topics", "apply"],
        "console": ["rampmeter", "console", "--host", "0.0.0.0"],
        **{name: ["python", "-m", name] for name in ("streams", "gpu_consumers", "autoscaler")},
    }
    for name in ("streams", "gpu_consumers", "autoscaler", "console"):
        assert OURS[name]["depends_on"]["topics"] == {"condition": "service_completed_successfully"}


@pytest.mark.parametrize("name", OURS)
def test_our_containers_can_change_nothing(name):
    service = OURS[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


def test_the_settings_are_ones_that_the_processes_read(monkeypatch):
    for service in OURS.values():
        for name, value in service["environment"].items():
            monkeypatch.setenv(name, value)
    for kind in (StreamsSettings, GpuSettings):
        loaded = load(kind)
        assert loaded.kafka["bootstrap.servers"] == "kafka:19092"
        assert loaded.log_json
    assert load(AutoscalerSettings).autoscaler.target == "metric"


def test_a_consumer_has_time_to_end():
    grace_s = float(OURS["gpu_consumers"]["stop_grace_period"].removesuffix("s"))
    assert grace_s >= GpuSettings().gpu.termination_s


def test_the_broker_is_the_one_that_everything_is_tested_on():
    assert COMPOSE["services"]["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
    assert not [service["image"] for service in COMPOSE["services"].values() if ":" not in service["image"]]


def test_prometheus_reads_every_process_of_ours():
    (job,) = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert (found["names"], found["port"]) == (["streams", "gpu_consumers", "autoscaler"], STATUS_PORT)


def test_the_image_is_of_nobody_special_and_says_whether_it_lives():
    assert f"USER {USER}:{USER}" in IMAGE
    assert f"RAMPMETER_STATUS_PORT={STATUS_PORT}" in IMAGE
    assert "HEALTHCHECK" in IMAGE
    assert IMAGE.rstrip().splitlines()[-2].endswith("AS rampmeter"), "what is built when no stage is named"


def test_the_image_has_every_file_that_it_copies():
    copied = {name for line in re.findall(r"^COPY (?!--from)(.+)", IMAGE, re.MULTILINE) for name in line.split()[:-1]}
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    for name in copied:
        assert (FOLDER.parent / name).exists(), name
        assert name in allowed or (name.startswith("requirements-") and "requirements-*.txt" in allowed), name
