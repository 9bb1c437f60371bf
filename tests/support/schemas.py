"""`python -m tests.support.schemas` writes `topics/schemas/*.json` from the records."""

import json
from pathlib import Path

from topics import codec

FOLDER = Path(codec.__file__).parent / "schemas"


def texts():
    """File name to text, as it must be."""
    return {
        f"{name}.json": json.dumps(schema, indent=2, sort_keys=True) + "\n" for name, schema in codec.schemas().items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
