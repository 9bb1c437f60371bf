"""`rampmeter up`: the local stack until someone says stop."""

import signal
import sys
import threading

from rampmeter import stack
from rampmeter.output import Output
from rampmeter.settings import StackSettings
from rampmeter.targets import Targets
from topics.clock import Clock

CHECK_S = 1.0


def run(settings: StackSettings, clock: Clock, output: Output) -> None:
    """Start, tell how to use it, wait for SIGINT or SIGTERM, stop in order."""
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())
    own = settings.stack
    plan = stack.Plan(
        own.data_dir,
        own.streams_workers,
        own.engines,
        llama=own.llama,
        env={
            "RAMPMETER_AUTOSCALER__LOG_DIR": str(own.data_dir.resolve() / "logs"),
            "RAMPMETER_GPU__GRACE_S": str(own.grace_s),
        },
        is_found=True,
    )
    with stack.running(settings, plan, clock, output.say) as made:
        for name, where in made.endpoints.items():
            output.say(f"  {name:<12} {where}")
        model = " --model smollm2-135m" if own.llama else ""
        output.say(f'try:  {sys.argv[0]} submit{model} --stream "Say hello."')
        output.say(f"see:  {sys.argv[0]} console")
        output.say("      (from this folder; Ctrl-C ends the stack; the model llama-3-8b is simulated)")
        targets = Targets(own.data_dir)
        try:
            while not ending.wait(CHECK_S):
                made.check()
                targets.refresh()
        finally:
            targets.remove()
