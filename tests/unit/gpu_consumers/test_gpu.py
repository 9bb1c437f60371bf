"""NVML's answers; its library is replaced, since machines that run the tests have no driver."""

import threading
from types import SimpleNamespace

import pynvml
import pytest

from gpu_consumers import gpu
from gpu_consumers.gpu import GpuProbe, Reading
from tests.support.clock import FakeClock


@pytest.fixture
def card(monkeypatch):
    """A card whose answers a test sets; an exception is raised."""
    answers = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetMigMode": (pynvml.NVML_DEVICE_MIG_DISABLE, pynvml.NVML_DEVICE_MIG_DISABLE),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=20, total=80),
        "nvmlDeviceGetTemperature": 64,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50),
    }

    def answering(name):
        def answer(*_):
            if isinstance(answers[name], Exception):
                raise answers[name]
            return answers[name]

        return answer

    for name in answers:
        monkeypatch.setattr(pynvml, name, answering(name))
    return answers


UNSUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_all_that_a_card_says_is_read(card):
    assert gpu.read("handle") == Reading(0.25, 64.0, 0.5)


@pytest.mark.parametrize(
    ("part", "reading"),
    [
        ("nvmlDeviceGetMigMode", Reading(0.25, 64.0, 0.5)),
        ("nvmlDeviceGetMemoryInfo", Reading(None, 64.0, 0.5)),
        ("nvmlDeviceGetTemperature", Reading(0.25, None, 0.5)),
        ("nvmlDeviceGetUtilizationRates", Reading(0.25, 64.0, None)),
    ],
)
def test_what_a_card_cannot_say_is_absent_and_the_rest_is_read(card, part, reading):
    card[part] = UNSUPPORTED
    assert gpu.read("handle") == reading


def test_a_divided_card_says_nothing_about_the_part_of_this_process(card):
    card["nvmlDeviceGetMigMode"] = (pynvml.NVML_DEVICE_MIG_ENABLE, pynvml.NVML_DEVICE_MIG_ENABLE)
    assert gpu.read("handle") == Reading(temperature_c=64.0)


def test_without_a_driver_nothing_is_known(card):
    card["nvmlInit"] = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    probe = GpuProbe(0, FakeClock())
    probe.start()
    assert probe.last() == Reading()


def test_a_driver_that_hangs_blocks_nobody_and_its_last_word_grows_old(card, monkeypatch):
    asked, answered = threading.Semaphore(0), threading.Semaphore(0)

    def slow(*_):
        asked.release()
        answered.acquire(timeout=30)
        return 64

    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", slow)
    monkeypatch.setattr(gpu, "_EVERY_S", 0.001)
    clock = FakeClock()
    probe = GpuProbe(0, clock)
    probe.start()
    answered.release()
    for _ in range(2):  # the second look has begun, so the first one is known
        assert asked.acquire(timeout=30)
    assert probe.last().temperature_c == 64.0
    clock.advance(6.0)
    assert probe.last() == Reading()
    probe.stop()
    answered.release()
