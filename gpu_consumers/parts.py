"""What dispatching works with: the parts of the process that it asks and feeds."""

from dataclasses import dataclass

from gpu_consumers.assignment import Fetched, Release
from gpu_consumers.cancels import Noted
from gpu_consumers.claims import Claims
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.metrics import Metrics
from gpu_consumers.running import Runner
from gpu_consumers.settings import GpuSettings
from gpu_consumers.settling import Settler
from topics.clock import Clock


@dataclass(frozen=True, slots=True)
class Parts:
    """One writer each: the loop."""

    settings: GpuSettings
    inbox: Mailbox[list[Fetched] | Release]
    orders: Mailbox[Noted]
    claims: Claims
    settler: Settler
    runner: Runner
    clock: Clock
    metrics: Metrics
