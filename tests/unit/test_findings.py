"""What an audit answers, as values: counts, exit rule, JSON forms."""

from __future__ import annotations

import json

import pytest

from sm120patch.audit.findings import (
    EnvironmentReport,
    FailOn,
    FileReport,
    FileState,
    Finding,
    HostReport,
    Kind,
    PackageReport,
    SetReport,
    Skipped,
    Verification,
    host_dict,
)

EDIT = FileReport("sglang", "sglang/a.py", FileState.FOREIGN, "1" * 64, "2" * 64)
EXTRA = FileReport("sglang", "sglang/x.py", FileState.ADDED, "3" * 64, None)
BACK = FileReport("sglang", "sglang/b.py", FileState.LOST, "4" * 64, "4" * 64)


def test_pristine_files_are_those_that_were_compared_and_hold_what_was_shipped() -> None:
    package = PackageReport("sglang", "1", "wheel", "/s", "/r", 10, 0, (EDIT, EXTRA, BACK))
    assert package.pristine == 9


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_fails_unless_another_is_chosen_and_unknown_always_does(kind: Kind) -> None:
    finding = Finding(kind, "sglang", "-", "x")
    assert FailOn().fails([finding])
    others = FailOn(frozenset({Kind.COPIES if kind is Kind.LOST else Kind.LOST}))
    assert others.fails([finding]) == (kind in (Kind.UNKNOWN, *others.kinds))
    assert not FailOn().fails([])


def test_the_json_form_names_the_environment_of_every_finding() -> None:
    verification = Verification("improved", True, "real", "f", "m", True, "2026-01-01", 3)
    environment = EnvironmentReport(
        "/opt/venv", "venv", "3.11", ("/venv",),
        (PackageReport("sglang", "1", "wheel", "/s", "/r", 10, 99, (EDIT,), ("/other",)),),
        (SetReport("one", "applied", "applied", True, verification=verification),),
        (Finding(Kind.FOREIGN, "sglang", "sglang/a.py", "edited"),),
    )  # fmt: skip
    missed = Finding(Kind.UNKNOWN, "-", "/mnt", "not looked into")
    report = HostReport("/", (environment,), (Skipped("/mnt", "nfs"),), (missed,), 5)
    found = json.loads(json.dumps(host_dict(report)))
    assert [(f["environment"], f["kind"]) for f in found["findings"]] == [
        (None, "unknown"),
        ("/opt/venv", "foreign"),
    ]
    (shown,) = found["environments"]
    assert shown["packages"][0]["files"][0]["state"] == "foreign"
    assert shown["sets"][0]["verification"]["verdict"] == "improved"
    assert environment.versions == {"sglang": "1"} and list(environment.files) == [EDIT]
