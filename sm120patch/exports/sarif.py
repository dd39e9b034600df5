"""An audit as SARIF 2.1.0, for code scanning in CI. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath

from sm120patch import __version__
from sm120patch.audit.findings import EnvironmentReport, Finding, HostReport, Kind
from sm120patch.exports.common import location, plain
from sm120patch.model import digest_of

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)

RULES: Mapping[Kind, tuple[str, str]] = {
    Kind.FOREIGN: ("error", "A file was edited and neither ledger nor catalogue explains it"),
    Kind.BY_HAND: ("warning", "A known patch set was applied by hand, without a ledger"),
    Kind.MISSING: ("error", "A file that upstream shipped is missing"),
    Kind.ADDED: ("warning", "A file that upstream did not ship lies in a package"),
    Kind.UNREADABLE: ("error", "A file could not be read"),
    Kind.RECORD: ("error", "RECORD is not what was published"),
    Kind.LOST: ("error", "A patch was lost to a reinstallation or an upgrade"),
    Kind.DRIFTED: ("error", "A patched file was edited since"),
    Kind.UNVERIFIED: ("warning", "A patch set is on disk without a passed verification"),
    Kind.INTERRUPTED: ("error", "A change was interrupted, or is under way"),
    Kind.CHANGED_PAYLOAD: ("warning", "The catalogue's set is not the one that was applied"),
    Kind.COPIES: ("warning", "There is a second copy of a package"),
    Kind.SHARED: ("warning", "An edited file is shared with other places"),
    Kind.CARRIER: ("warning", "The packages are changed from outside when Python starts"),
    Kind.STALE_BYTECODE: ("error", "Bytecode of another content would be run"),
    Kind.STALE_BUILD: ("error", "A build of another content would be loaded"),
    Kind.STALE_SERVER: ("error", "A running server does not run what is on disk"),
    Kind.UNKNOWN: ("error", "Something could not be told"),
}
"""Kind of finding -> level and what it means; the index of a kind is its rule's."""
_ORDER = {kind: index for index, kind in enumerate(RULES)}


def document(report: HostReport) -> str:
    """Return the log as JSON; paths are those of the audited root as it lies on this host."""
    run = {
        "tool": {"driver": _driver()},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(report)],
        "results": [_result(report, e, finding) for e, finding in report.all_findings],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _driver() -> dict[str, object]:
    return {
        "name": "sm120patch",
        "semanticVersion": __version__,
        "version": __version__,
        "rules": [
            {
                "id": kind.value,
                "shortDescription": {"text": text},
                "defaultConfiguration": {"level": level},
            }
            for kind, (level, text) in RULES.items()
        ],
    }


def _invocation(report: HostReport) -> dict[str, object]:
    unknown = any(finding.kind is Kind.UNKNOWN for _, finding in report.all_findings)
    return {
        "executionSuccessful": not unknown,
        "toolExecutionNotifications": [
            {"level": "note", "message": {"text": plain(f"not looked into: {s.path}: {s.reason}")}}
            for s in report.skipped
        ],
    }


def _result(
    report: HostReport, environment: EnvironmentReport | None, finding: Finding
) -> dict[str, object]:
    level, meaning = RULES[finding.kind]
    prefix = "" if environment is None else plain(environment.prefix)
    path = location(environment, finding)
    about = " ".join(w for w in (finding.target, finding.path) if w != "-") or "this host"
    hint = f" ({finding.hint})" if finding.hint else ""
    return {
        "ruleId": finding.kind.value,
        "ruleIndex": _ORDER[finding.kind],
        "level": level,
        "message": {"text": plain(f"{meaning}: {about}: {finding.detail}{hint}")},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(report.root, path)}}}],
        "partialFingerprints": {
            "sm120patch/v1": digest_of(
                [finding.kind.value, prefix, finding.target, plain(finding.path)]
            )
        },
        "properties": {"environment": prefix, "sets": list(finding.sets)},
    }


def _uri(root: str, path: str) -> str:
    return PurePosixPath(f"{root.rstrip('/')}{path}").as_uri()
