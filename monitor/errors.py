"""Every exception of the project, arranged by who must act. Imports nothing and never formats for a terminal."""

from __future__ import annotations


class MonitorError(Exception):
    """The root of all errors that phasewatch raises on purpose."""


class ConfigError(MonitorError):
    """The operator must change a setting, an argument or a file; the command exits with code 2."""


class StoreError(MonitorError):
    """The store cannot be opened or written; the operator must act, the profiles themselves are untouched."""


class StoreDamaged(StoreError):
    """The store's file holds what cannot be read; it is set aside, and a new one is made from the profiles."""


class SourceUnavailable(MonitorError):
    """A source cannot be read now; the next poll tries again."""


class RequestFailed(SourceUnavailable):
    """One request to a bucket or a queue failed.

    Args:
        message: what was asked of what, and what the answer was.
        kind: one word for counting, such as throttled, timeout, denied or missing.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class CorruptFile(MonitorError):
    """One file or name cannot be used; it is counted and set aside, the others go on.

    Args:
        reason: what is wrong with it, in one sentence without the file's name.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class IncompleteFile(CorruptFile):
    """A file that ends too early: the normal state of a file that is being written."""


class ReadError(CorruptFile):
    """One file was not read.

    Args:
        reason: why, in one sentence without the file's name.
        kind: one word for counting: missing, unreadable, too_large or refused.
        version: what was seen of the file.
    """

    def __init__(self, reason: str, *, kind: str, version: tuple[int, ...] = ()) -> None:
        super().__init__(reason)
        self.kind = kind
        self.version = version


class LayoutError(CorruptFile):
    """A name on disk that does not follow the layout; the reason says which part of which name."""


class ForkedProcess(MonitorError):
    """An object that lives on a thread was used in a forked child, where that thread does not exist."""


class QueryError(MonitorError):
    """A client asked for something that cannot be answered.

    Args:
        message: what is wrong and what is allowed.
        parameter: the query parameter at fault, or None.
        status: the HTTP status that carries the error.
        code: a short stable word for programs.
    """

    def __init__(
        self,
        message: str,
        *,
        parameter: str | None = None,
        status: int = 400,
        code: str = "bad_parameter",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.parameter = parameter
        self.status = status
        self.code = code


class AccessRefused(QueryError):
    """A client may not ask.

    Args:
        reason: one word for counting: user, credentials or certificate.
        challenge: what it may prove itself with, as WWW-Authenticate says it; "" where nothing helps.
    """

    def __init__(self, message: str, *, status: int, reason: str, challenge: str = "") -> None:
        super().__init__(message, status=status, code="unauthorized" if status == 401 else "forbidden")
        self.reason = reason
        self.challenge = challenge


class ArgumentError(QueryError, ValueError):
    """A Python caller passed an argument that cannot be meant; the message names it and what is allowed."""

    def __init__(self, parameter: str, value: object, allowed: str) -> None:
        shown = repr(value)
        super().__init__(
            f"{parameter}={shown if len(shown) <= 200 else shown[:197] + '…'}: {allowed}", parameter=parameter
        )
