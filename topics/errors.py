"""Failures that a caller can act on.  Anything else is a bug and stops the process."""

from topics.outcomes import Outcome, Reason


class PipelineError(Exception):
    """Root of the expected failures."""


class DependencyDown(PipelineError):
    """A broker, Redis or an engine cannot be reached; exit status 69."""

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(f"{what} ({where}). {fix}")
        self.what, self.where, self.fix = what, where, fix


class ConfigError(PipelineError):
    """Settings or topics that cannot work; lists every problem at once; exit status 78."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class DecodeError(PipelineError):
    """A record that no one can read: it goes to the dead letters, since there is nobody to answer."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class LagUnavailable(PipelineError):
    """Part of a lag reading is missing, so no number may be made of the rest."""


class EngineError(PipelineError):
    """The engine refused or broke.

    `retryable` says whether another attempt can help, `fatal` that this engine takes no work any more, `untried` that
    it did not take the job: this was no attempt.
    """

    def __init__(
        self,
        detail: str,
        *,
        retryable: bool,
        fatal: bool = False,
        untried: bool = False,
        outcome: Outcome = Outcome.FAILED,
    ) -> None:
        super().__init__(detail)
        self.detail, self.retryable, self.fatal, self.untried = detail, retryable, fatal, untried
        self.outcome = outcome
