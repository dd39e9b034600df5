"""One family of errors: exit code, stable code word, hint, details for machines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit statuses of the command line; documented in the README and never renumbered."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    CATALOGUE = 3
    NOT_APPLICABLE = 4
    CONFLICT = 5
    ROLLED_BACK = 6
    RECOVERY_NEEDED = 7
    NOT_VERIFIED = 8
    BUSY = 9
    HOST = 10
    BUG = 70
    INTERRUPTED = 130


class Sm120PatchError(Exception):
    """An expected failure: what was being done, what was found, what was expected, what to do next.

    `code` is a stable word for machines, `details` holds JSON-ready data for `--output json`.
    """

    exit_code: ExitCode = ExitCode.BUG
    default_code = "error"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        code: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or self.default_code
        self.details: Mapping[str, object] = details or {}


class UsageError(Sm120PatchError):
    """The request itself is wrong or incomplete; nothing was looked at, nothing was written."""

    exit_code = ExitCode.USAGE
    default_code = "usage"


class CatalogueError(Sm120PatchError):
    """A manifest or payload of the catalogue is broken; `details["faults"]` lists every fault."""

    exit_code = ExitCode.CATALOGUE
    default_code = "catalogue"


class NotApplicableError(Sm120PatchError):
    """No variant fits this version, GPU or companion version; the message says which."""

    exit_code = ExitCode.NOT_APPLICABLE
    default_code = "not-applicable"


class ConflictError(Sm120PatchError):
    """The target is not in a state the plan may start from (foreign edit, stale plan, relation)."""

    exit_code = ExitCode.CONFLICT
    default_code = "conflict"


class RolledBackError(Sm120PatchError):
    """The transaction failed after it had begun; every file holds its content from before."""

    exit_code = ExitCode.ROLLED_BACK
    default_code = "rolled-back"


class RecoveryNeededError(Sm120PatchError):
    """A journal is open and could not be settled here; `sm120patch recover` is the next step."""

    exit_code = ExitCode.RECOVERY_NEEDED
    default_code = "recovery-needed"


class NotVerifiedError(Sm120PatchError):
    """A verification ended in any verdict but a pass."""

    exit_code = ExitCode.NOT_VERIFIED
    default_code = "not-verified"


class BusyError(Sm120PatchError):
    """Another process holds the environment, the port or the GPUs."""

    exit_code = ExitCode.BUSY
    default_code = "busy"


class HostError(Sm120PatchError):
    """The host cannot do what was asked: no interpreter, read-only prefix, dead baseline."""

    exit_code = ExitCode.HOST
    default_code = "host"


class InterruptedByUser(Sm120PatchError):  # noqa: N818 - the field's word for ^C, not an error
    """^C or SIGTERM; the environment was put back before this was raised."""

    exit_code = ExitCode.INTERRUPTED
    default_code = "interrupted"
