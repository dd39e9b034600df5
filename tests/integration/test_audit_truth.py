"""What an audit must not pass over, nor tell of another copy than the one that is meant."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.catalogue import A, B
from tests.support.command import run
from tests.support.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# --- RECORD -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [(), ("--quick",)])
def test_a_file_that_record_lists_without_a_digest_is_unknown(
    place: Place, mode: tuple[str, ...]
) -> None:
    record = place.site / "sglang-1.0.dist-info" / "RECORD"
    lines = record.read_text().splitlines(keepends=True)
    bare = [f"{B},,\n" if line.startswith(f"{B},") else line for line in lines]
    record.write_text("".join(bare) + "sglang/__pycache__/b.cpython-311.pyc,,\n")
    place.write(B, "value = 'somebody'\n")
    for _ in range(2):  # the second may believe the stat cache
        ran = place.run("audit", *mode)
        (finding,) = ran.result["findings"]
        assert ran.code == 1 and finding["kind"] == "unknown"
        assert finding["detail"].startswith(f"{B}: listed without a digest")
    (unknown,) = place.run("diff").result["unknown"]
    assert B in unknown


# --- which copy ---------------------------------------------------------------------------------


def test_a_copied_environment_is_not_judged_by_the_one_it_was_copied_from(
    place: Place, tmp_path: Path
) -> None:
    (place.site / "start.pth").write_text("import os; os.environ.get('SETUPTOOLS_USE')\n")
    place.stage("one")
    copy = tmp_path / "copy"
    shutil.copytree(place.prefix, copy, symlinks=True)
    site = copy / place.site.relative_to(place.prefix)
    (site / B).write_text("value = 'somebody'\n")
    ran = run("audit", "--env", copy, "--catalogue", place.catalogue, "--output", "json")
    (environment,) = ran.result["environments"]
    assert {p["root"] for p in environment["packages"]} == {str(site)}
    found = {(f["kind"], f["path"]) for f in ran.result["findings"]}
    assert found == {("carrier", str(site / "start.pth")), ("foreign", B), ("unverified", "one")}


def test_a_copy_that_start_up_code_puts_first_is_the_one_that_is_judged(
    place: Place, tmp_path: Path
) -> None:
    other = tmp_path / "base" / "lib" / "python3.11" / "site-packages"
    shutil.copytree(place.site, other)
    (place.site / "base.pth").write_text(f"import sys; sys.path.insert(0, {str(other)!r})\n")
    place.stage("one")
    assert "'one'" in (other / A).read_text()
    (environment,) = place.run("audit").result["environments"]
    assert {p["root"] for p in environment["packages"] if p["target"] == "sglang"} == {str(other)}
