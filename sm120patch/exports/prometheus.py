"""An audit as metrics for node_exporter's textfile collector. Pure.

Needs prometheus_client (`sm120patch[prometheus]`). Names are documented in docs/metrics.md; a name
or label is never changed, only added.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sm120patch import __version__
from sm120patch.audit.findings import EnvironmentReport, FileState, HostReport, Kind
from sm120patch.exports.common import claimed, cleaned
from sm120patch.model import State

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Gauge

STATES = (*(state.value for state in State), "by-hand", "unverified")
"""Values of the label `state` of a set."""


def text(report: HostReport, now: float, seconds: float) -> str:
    """Metrics of an audit that ended at `now` (seconds since the epoch) and took `seconds`."""
    from prometheus_client import CollectorRegistry, generate_latest

    report = cleaned(report)
    registry = CollectorRegistry(auto_describe=False)
    _audit(_Gauges(registry), report, now, seconds)
    _environments(_Gauges(registry), report)
    return generate_latest(registry).decode("utf-8")


class _Gauges:
    """Makes gauges in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def make(self, name: str, help_text: str, *labels: str) -> Gauge:
        from prometheus_client import Gauge

        return Gauge(f"sm120patch_{name}", help_text, labels, registry=self._registry)


def _audit(gauges: _Gauges, report: HostReport, now: float, seconds: float) -> None:
    info = gauges.make("build_info", "Version of sm120patch that made the audit.", "version")
    info.labels(__version__).set(1)
    gauges.make("audit_timestamp_seconds", "When the audit ended.").set(now)
    gauges.make("audit_duration_seconds", "How long the audit took.").set(seconds)
    gauges.make("audit_environments", "Environments that were found.").set(len(report.environments))
    gauges.make("audit_skipped", "Places that were not looked into.").set(len(report.skipped))
    findings = gauges.make(
        "findings",
        "Findings by kind; an empty environment is the host itself.",
        "environment",
        "kind",
    )
    counted: dict[str, Counter[Kind]] = {"": Counter()}
    counted.update({e.prefix: Counter() for e in report.environments})
    for environment, finding in report.all_findings:
        counted["" if environment is None else environment.prefix][finding.kind] += 1
    for prefix, kinds in counted.items():
        for kind in Kind:
            # Zeros as well: an alert on a series that is not there never fires.
            findings.labels(prefix, kind.value).set(kinds[kind])


def _environments(gauges: _Gauges, report: HostReport) -> None:
    packages = gauges.make(
        "package_info", "Installed targets.", "environment", "package", "version", "kind"
    )
    files = gauges.make("files", "Files by state.", "environment", "package", "state")
    applied = gauges.make(
        "set_applied",
        "1 for a set on disk that passed a real verification on this host, else 0.",
        "environment",
        "set",
        "revision",
    )
    state = gauges.make("set_state", "1 for the state a set is in.", "environment", "set", "state")
    for environment in report.environments:
        for package in environment.packages:
            labels = (environment.prefix, package.target)
            packages.labels(*labels, package.version, package.kind).set(1)
            found = Counter(file.state for file in package.files)
            for kind in FileState:
                files.labels(*labels, kind.value).set(found[kind])
            files.labels(*labels, "pristine").set(package.pristine)
        _sets(applied, state, environment)


def _sets(applied: Gauge, state: Gauge, environment: EnvironmentReport) -> None:
    for entry in environment.sets:
        applied.labels(environment.prefix, entry.id, str(entry.revision)).set(int(entry.counts))
        for word in STATES:
            state.labels(environment.prefix, entry.id, word).set(int(word == claimed(entry)))
