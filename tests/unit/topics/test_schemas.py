import json

import jsonschema
import pytest

from tests.support import schemas
from tests.support.builders import body, work
from topics import codec


def test_the_written_schemas_are_those_of_the_records():
    written = {path.name: path.read_text() for path in schemas.FOLDER.glob("*.json")}
    assert written == schemas.texts(), "records changed; run: python -m tests.support.schemas"


@pytest.mark.parametrize("name", [*schemas.texts()])
def test_each_schema_is_a_valid_json_schema(name):
    jsonschema.Draft202012Validator.check_schema(json.loads(schemas.texts()[name]))


def test_what_we_write_satisfies_its_schema():
    jsonschema.validate(json.loads(codec.encode(work())), codec.schemas()["work"])
    jsonschema.validate({"id": "r1", "body": json.loads(body())}, codec.schemas()["envelope"])
