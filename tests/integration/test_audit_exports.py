"""`audit --cyclonedx --prometheus --sarif` of real environments."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from sm120patch.model import Changed
from sm120patch.unified import apply
from tests.support.catalogue import A_TEXT, KERNEL, KERNEL_TEXT, A
from tests.support.command import run, run_after
from tests.support.place import A_WITH_ONE, KERNEL_OPEN, Place, refused
from tests.support.serving import Host
from tests.support.simulated import TINY
from tests.unit.test_exports import check_sarif


def patches(path: Path, target: str) -> list[dict[str, Any]]:
    (environment,) = json.loads(path.read_text())["components"]
    (package,) = [c for c in environment["components"] if c["name"] == target]
    found: list[dict[str, Any]] = package.get("pedigree", {}).get("patches", [])
    return found


def test_the_diffs_lead_from_upstream_to_what_is_on_disk(place: Place) -> None:
    place.stage("bundle")
    out = place.root / "bom.json"
    ran = place.run("audit", "--cyclonedx", out)
    assert ran.result["written"] == [str(out)]
    for target, path, before, after, name in (
        ("sglang", A, A_TEXT, A_WITH_ONE, "one"),
        ("flashinfer-python", KERNEL, KERNEL_TEXT, KERNEL_OPEN, "kernel"),
    ):
        (patch,) = patches(out, target)
        assert [issue["id"] for issue in patch["resolves"]] == [name]
        diff = patch["diff"]["text"]["content"].encode()
        result = apply(diff, path, before.encode())
        assert isinstance(result, Changed) and result.data == after.encode()
        back = apply(diff, path, after.encode(), reverse=True)
        assert isinstance(back, Changed) and back.data == before.encode()


def test_an_edit_without_known_upstream_has_no_diff_and_is_there_all_the_same(place: Place) -> None:
    place.write(A, A_TEXT + "edited = 1\n")
    out = place.root / "bom.json"
    assert place.run("audit", "--cyclonedx", out).code == 1
    (patch,) = patches(out, "sglang")
    assert patch == {"type": "unofficial"}


def test_all_formats_agree_with_the_json(place: Place) -> None:
    place.stage("one")
    place.write(KERNEL, "edited\n")
    metrics, log = place.root / "x.prom", place.root / "x.sarif"
    ran = place.run("audit", "--prometheus", metrics, "--sarif", log)
    found = sorted(f["kind"] for f in ran.result["findings"])
    assert "foreign" in found and "unverified" in found
    run_of = check_sarif(log.read_text())
    assert sorted(r["ruleId"] for r in run_of["results"]) == found
    counted = re.findall(r'findings\{.*kind="([a-z-]+)"\} (\d+)\.0', metrics.read_text())
    assert sorted(kind for kind, n in counted for _ in range(int(n))) == found
    places = {
        r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run_of["results"]
    }
    assert f"file://{place.site}/{KERNEL}" in places


def test_files_are_replaced_whole_and_readable_by_the_collector(place: Place) -> None:
    out = place.root / "x.prom"
    out.write_text("old")
    keeper = out.open()
    place.run("audit", "--prometheus", out)
    assert keeper.read() == "old", "a reader of the old file keeps it"
    keeper.close()
    assert out.read_text().startswith("# HELP")
    assert stat.S_IMODE(out.stat().st_mode) == 0o644
    assert [p.name for p in place.root.glob(".*") if p.is_file()] == []


@pytest.mark.parametrize(
    ("option", "module"), [("prometheus", "prometheus_client"), ("cyclonedx", "packageurl")]
)
def test_a_missing_library_is_told_before_the_audit(option: str, module: str, place: Place) -> None:
    hide = (
        "import importlib.util as u\nreal = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name == {module!r} else real(name, *rest)"
    )
    out = place.root / "out"
    ran = run_after(hide, "audit", f"--{option}", out, *place.options)
    error = refused(ran, 2, module, f"pip install 'sm120patch[{option}]'")
    assert error["code"] == "missing-extra" and not out.exists()


def test_a_place_that_cannot_be_written_is_told(place: Place) -> None:
    refused(place.run("audit", "--sarif", place.root / "no/such.sarif"), 2, "no directory")
    refused(place.run("audit", "--sarif", "/proc/sarif"), 10, "cannot write /proc/sarif")


def test_simulated_evidence_is_not_counted(tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    profile = host.profile("root-complex-2gpu", workloads=TINY, verify="blocks = 1")
    assert host.run("apply", "fusion", "--profile", profile).code == 0
    out = tmp_path / "x.prom"
    ran = run("audit", "--prometheus", out, "--output", "json", *host.options)
    (fusion,) = [
        s for e in ran.result["environments"] for s in e["sets"] if s["id"] == "fusion"
    ]  # fmt: skip
    assert fusion["label"] == "applied (simulated)"
    text = out.read_text()
    assert re.search(r'sm120patch_set_applied\{.*set="fusion"\} 0\.0', text)
    assert not re.search(r"sm120patch_set_applied\{.*\} 1\.0", text)
    assert re.search(r'set_state\{.*set="fusion",state="unverified"\} 1\.0', text)
