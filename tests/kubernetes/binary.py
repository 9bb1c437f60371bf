"""`python -m tests.kubernetes.binary` builds the control plane, once for each state of its module (125 MB)."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

MODULE = Path(__file__).parent / "control_plane"
VERSION = "v1.37.2"
"""Of k8s.io/kubernetes in its go.mod; the servers say it of themselves."""
BUILD = "make test-kubernetes"


def path() -> Path:
    """Where it lies, or would."""
    digest = hashlib.sha256()
    for file in sorted(MODULE.iterdir()):
        digest.update(file.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "rampmeter" / f"control-plane-{digest.hexdigest()[:12]}" / "control_plane"


def build() -> None:
    """Build it if it is not there."""
    if path().exists():
        return
    print(f"building the control plane of Kubernetes {VERSION} (Go; about six minutes)", file=sys.stderr)
    made = path().with_suffix(".new")
    made.parent.mkdir(parents=True, exist_ok=True)
    major, minor, _ = VERSION.removeprefix("v").split(".")
    stamp = "k8s.io/component-base/version.git"
    names = f"-X {stamp}Version={VERSION} -X {stamp}Major={major} -X {stamp}Minor={minor}"
    # Neither inlining nor debug data: half the time and a third of the size.
    flags = ["-trimpath", "-gcflags=all=-l -dwarf=false", "-ldflags", f"-s -w {names}"]
    subprocess.run(
        ["go", "build", *flags, "-o", made, "."], cwd=MODULE, env=os.environ | {"CGO_ENABLED": "0"}, check=True
    )
    made.rename(path())


if __name__ == "__main__":
    build()
