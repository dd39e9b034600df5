"""Case 63: the nodes of one fleet are not alike, and one of them does not answer."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.catalogue import A, write_catalogue
from tests.support.command import Ran, run
from tests.support.place import A_WITH_ONE, Place, refused


def audit(node: Path, catalogue: Path) -> Ran:
    return run("audit", "--root", node, "--env", "/opt/env", "--catalogue", catalogue,
               "--output", "json")  # fmt: skip


def digest(ran: Ran) -> set[tuple[str, str, str]]:
    """What is patched on a node: set, state and content."""
    (environment,) = ran.result["environments"]
    files = {
        (f["path"], f["sha256"], f["state"]) for p in environment["packages"] for f in p["files"]
    }
    return files | {(s["id"], s["state"], "set") for s in environment["sets"]}


def test_case_63_a_node_lacks_the_patch_has_another_or_cannot_be_reached(
    place: Place, tmp_path: Path
) -> None:
    catalogue = write_catalogue(tmp_path / "c")
    pristine = tmp_path / "lacking"
    shutil.copytree(place.prefix, pristine / "opt/env", symlinks=True)
    place.stage("one")
    nodes = {name: tmp_path / name for name in ("first", "second", "other")}
    for node in nodes.values():
        shutil.copytree(place.prefix, node / "opt/env", symlinks=True)
    site = place.site.relative_to(place.prefix)
    (nodes["other"] / "opt/env" / site / A).write_text(A_WITH_ONE + "another = 1\n")
    found = {name: audit(node, catalogue) for name, node in nodes.items()}
    assert digest(found["first"]) == digest(found["second"]) != digest(found["other"])
    assert ("one", "drifted", "set") in digest(found["other"])
    lacking = audit(pristine, catalogue)
    assert lacking.code == 0 and digest(lacking) == set()
    away = audit(tmp_path / "unreachable", catalogue)
    refused(away, 2 if away.code == 2 else 10, "unreachable")
    assert away.json["result"] is None, "nothing that could be taken for an answer"


def test_case_63_what_is_unknown_is_never_ok(place: Place) -> None:
    (next(place.site.glob("sglang-*.dist-info")) / "RECORD").unlink()
    for chosen in ((), ("--fail-on", "lost")):
        ran = place.run("audit", *chosen)
        assert "unknown" in {f["kind"] for f in ran.result["findings"]}
        assert ran.code == 1, "whatever was chosen to fail on"
