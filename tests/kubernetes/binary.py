"""`python -m tests.kubernetes.binary` builds what the tests run: once for each state of its Go module.

The control plane takes six minutes on two cores and 125 MB, KEDA (`python -m tests.kubernetes.binary keda`) up to a
quarter of an hour and 270 MB.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
_VERSION = "v1.37.2"
"""Of k8s.io/kubernetes in its go.mod; the servers say it of themselves."""
_MAJOR, _MINOR, _ = _VERSION.removeprefix("v").split(".")
_STAMP = "k8s.io/component-base/version.git"
_KEDA = "github.com/kedacore/keda/v2"


@dataclass(frozen=True)
class Binary:
    """What a Go module is built into, in a folder of the cache.  `command` is what a person types for it."""

    module: str
    command: str
    packages: tuple[str, ...]
    names: tuple[str, ...]
    stamps: str = ""
    copied: tuple[str, str] | None = None
    """A module among those it needs, and which of its files come along."""

    @property
    def source(self) -> Path:
        return FOLDER / self.module

    @property
    def folder(self) -> Path:
        """Where it lies, or would."""
        digest = hashlib.sha256()
        for file in sorted(self.source.iterdir()):
            digest.update(file.read_bytes())
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "rampmeter" / f"{self.module.replace('_', '-')}-{digest.hexdigest()[:12]}"

    @property
    def is_built(self) -> bool:
        return all((self.folder / name).exists() for name in self.names)

    def build(self) -> None:
        """Build it if it is not there."""
        if self.is_built:
            return
        print(f"building {self.module} (Go; minutes)", file=sys.stderr)
        made = self.folder.with_suffix(".new")
        made.mkdir(parents=True, exist_ok=True)
        # Neither inlining nor debug data: half the time and a third of the size.
        flags = ["-trimpath", "-gcflags=all=-l -dwarf=false", "-ldflags", f"-s -w {self.stamps}".strip()]
        self._go("build", *flags, "-o", f"{made}/", *self.packages)
        if self.copied:
            module, pattern = self.copied
            found = self._go("list", "-m", "-f", "{{.Dir}}", module, stdout=subprocess.PIPE).stdout.strip()
            for file in Path(found).glob(pattern):
                shutil.copyfile(file, made / file.name)
        made.rename(self.folder)

    def _go(self, *arguments: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"CGO_ENABLED": "0"}
        return subprocess.run(
            ["go", *arguments], cwd=self.source, env=environment, check=True, stdout=stdout, text=True
        )


CONTROL_PLANE = Binary(
    "control_plane",
    "make test-kubernetes",
    (".",),
    ("control_plane",),
    f"-X {_STAMP}Version={_VERSION} -X {_STAMP}Major={_MAJOR} -X {_STAMP}Minor={_MINOR}",
)
KEDA = Binary(
    "keda",
    "python -m tests.kubernetes.binary keda",
    (f"{_KEDA}/cmd/operator", f"{_KEDA}/cmd/adapter"),
    ("operator", "adapter", "keda.sh_scaledobjects.yaml"),
    copied=(_KEDA, "config/crd/bases/*.yaml"),
)


if __name__ == "__main__":
    {"keda": KEDA}.get(sys.argv[-1], CONTROL_PLANE).build()
