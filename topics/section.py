"""The shape of every group of settings, and what is said of a wrong one."""

from typing import Final

from pydantic import BaseModel, ConfigDict

_AS_JSON: Final = {"tuple_type", "list_type", "frozen_set_type", "dict_type", "model_type"}


class Section(BaseModel):
    """A frozen group of settings; an unknown name in it is an error, a typing mistake, as is infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)


def in_words(kind: str, message: str) -> str:
    """The library's message of an error of that kind, but where it leaves open what to do."""
    if kind == "extra_forbidden":
        return "there is no such setting; `rampmeter config schema` names all"
    return f"{message}; in a variable it is JSON" if kind in _AS_JSON else message
