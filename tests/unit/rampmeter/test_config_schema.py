"""The schema of a settings file."""

import re
import tomllib

import jsonschema
import pytest

from rampmeter import checks, config_schema
from tests.support import readme

SCHEMA = config_schema.schema(checks.KINDS)


def test_the_file_of_the_readme_is_one():
    (example,) = re.findall(r"```toml\n(.*?)```", readme.README.read_text(), flags=re.DOTALL)
    jsonschema.validate(tomllib.loads(example), SCHEMA)


@pytest.mark.parametrize(
    "wrong", [{"stream": {}}, {"gpu": {"window_requests": 0}}, {"topics": {"prefix": "a b"}}, {"redis": {"uri": "x"}}]
)
def test_what_no_process_takes_is_refused(wrong):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_what_the_code_says_of_a_setting_is_its_description():
    said = SCHEMA["$defs"]["History"]["properties"]["long_service_s"]["description"]
    assert "Too small" in said
    assert "Too large" in said
    assert "\n" not in said


def test_every_section_of_every_process_is_there():
    assert {"streams", "gpu", "autoscaler", "stack", "identity", "kafka", "models", "pools"} <= SCHEMA[
        "properties"
    ].keys()
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
