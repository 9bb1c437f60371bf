"""What NVML says about the GPU.  No driver, MIG or an old card: a reading is absent, never zero."""

from contextlib import suppress
from dataclasses import dataclass

import pynvml


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the GPU; None is unknown."""

    memory_used_ratio: float | None = None
    temperature_c: float | None = None


class GpuProbe:
    """Reads one GPU of this machine.  Blocks for well under a millisecond."""

    def __init__(self, index: int) -> None:
        self._handle: object | None = None
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def read(self) -> Reading:
        """The present state, each part by itself."""
        if self._handle is None:
            return Reading()
        memory_used_ratio = temperature_c = None
        with suppress(pynvml.NVMLError):
            memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
            memory_used_ratio = float(memory.used) / float(memory.total)
        with suppress(pynvml.NVMLError):
            temperature_c = float(pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU))
        return Reading(memory_used_ratio, temperature_c)
