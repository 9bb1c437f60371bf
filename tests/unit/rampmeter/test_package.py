import subprocess
import sys

import rampmeter


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, rampmeter; print(any(name in sys.modules for name in ('confluent_kafka', 'pydantic', 'typer')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_exported_name_is_there():
    assert all(getattr(rampmeter, name) for name in rampmeter.__all__)
    assert not hasattr(rampmeter, "nothing")
