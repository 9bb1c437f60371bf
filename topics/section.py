"""The shape of every group of settings."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of settings; an unknown name in it is an error, since it is a typing mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
