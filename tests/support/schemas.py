"""`python -m tests.support.schemas` writes `topics/schemas/*.json` from the records, unless that breaks who reads them.

`schemas_baseline.json` has what versions before wrote.  With `--accept` a break is written all the same; then the
CHANGELOG says what breaks and in which order processes are to be replaced.
"""

import json
import sys
from pathlib import Path

from topics import codec

FOLDER = Path(codec.__file__).parent / "schemas"
BASELINE = Path(__file__).with_name("schemas_baseline.json")
_WORDS = ("description", "title")


def texts():
    """File name to text, as it must be."""
    return {
        f"{name}.json": json.dumps(schema, indent=2, sort_keys=True) + "\n" for name, schema in codec.schemas().items()
    }


def parts(schemas):
    """Every object and enum by record and name, without words for people."""
    return {
        f"{record}.{name}": _bare(part) for record, schema in schemas.items() for name, part in schema["$defs"].items()
    }


def breaks(before, now):
    """Why a reader of one side cannot read what the other wrote, a line each.

    Old readers pass over fields that they do not know and new ones take defaults for what old records lack, so optional
    fields and records may be added.  All else stays: a word that is new to its reader makes the record unreadable.
    """
    return [f"{name}: {why}" for name, old in before.items() for why in _breaks(old, now.get(name))]


def _breaks(old, new):
    if new is None:
        yield "is gone"
        return
    if differing := set(old.get("enum", ())) ^ set(new.get("enum", ())):
        yield f"lost or got the words {sorted(differing)}"
    if set(old.get("required", ())) != set(new.get("required", ())):
        yield f"requires {sorted(new.get('required', ()))} and not {sorted(old.get('required', ()))}"
    fields = new.get("properties", {})
    for name, field in old.get("properties", {}).items():
        if name not in fields:
            yield f"lost {name}"
        elif field != fields[name]:
            yield f"{name} was {json.dumps(field)} and is {json.dumps(fields[name])}"
    if any(old.get(key) != new.get(key) for key in (old.keys() | new.keys()) - {"enum", "required", "properties"}):
        yield "is another kind of value"


def _bare(value):
    if isinstance(value, list):
        return [_bare(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "properties" in value:  # whose names may be those words
        fields = {name: _bare(field) for name, field in value["properties"].items()}
        return {**_bare({key: one for key, one in value.items() if key != "properties"}), "properties": fields}
    return {key: _bare(one) for key, one in value.items() if key not in _WORDS}


def baseline():
    """What versions before wrote."""
    return json.loads(BASELINE.read_text()) if BASELINE.exists() else {}


def main():
    """Write them; status 1 when that would break readers."""
    now = parts(codec.schemas())
    if (found := breaks(baseline(), now)) and sys.argv[1:] != ["--accept"]:
        sys.stderr.write("\n".join([*found, "nothing was written: readers of other versions would break", ""]))
        return 1
    BASELINE.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
