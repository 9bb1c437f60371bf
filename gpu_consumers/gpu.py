"""What NVML says about the GPU.  No driver, MIG or an old card: a reading is absent, never zero."""

import threading
from contextlib import suppress
from dataclasses import dataclass

import pynvml

from topics.clock import Clock

_EVERY_S = 0.5
_STALE_S = 5.0
"""A driver that does not answer for this long: the last reading says nothing any more."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the GPU; None is unknown."""

    memory_used_ratio: float | None = None
    temperature_c: float | None = None
    busy_ratio: float | None = None
    """Part of the last interval of NVML in which a kernel ran."""


class GpuProbe:
    """Reads one GPU of this machine, in a thread of its own: a driver that hangs must not stop the event loop."""

    def __init__(self, index: int, clock: Clock) -> None:
        self._index, self._clock = index, clock
        self._last, self._looked_s = Reading(), clock.mono_s()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to read; without a driver there is nothing to begin."""
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(self._index)
            threading.Thread(target=self._follow, args=(handle,), name="nvml", daemon=True).start()

    def stop(self) -> None:
        """End the thread after its present call, however long that takes."""
        self._stopped.set()

    def last(self) -> Reading:
        """The newest reading; nothing is known when it is old."""
        return self._last if self._clock.mono_s() - self._looked_s < _STALE_S else Reading()

    def _follow(self, handle: object) -> None:
        while not self._stopped.is_set():
            self._last, self._looked_s = read(handle), self._clock.mono_s()
            self._stopped.wait(_EVERY_S)


def read(handle: object) -> Reading:
    """The present state of an NVML device, each part by itself.

    Under MIG memory and use are those of the whole card, of which this process has a part: absent.
    """
    memory_used_ratio = temperature_c = busy_ratio = None
    with suppress(pynvml.NVMLError):
        temperature_c = float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    if _is_divided(handle):
        return Reading(temperature_c=temperature_c)
    with suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        memory_used_ratio = float(memory.used) / float(memory.total)
    with suppress(pynvml.NVMLError):
        busy_ratio = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    return Reading(memory_used_ratio, temperature_c, busy_ratio)


def _is_divided(handle: object) -> bool:
    with suppress(pynvml.NVMLError):  # a card that knows no MIG
        mode, _ = pynvml.nvmlDeviceGetMigMode(handle)
        return bool(mode == pynvml.NVML_DEVICE_MIG_ENABLE)
    return False
