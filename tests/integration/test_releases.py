"""`matrix` and `plan --against` on home-made releases: offline, nothing installed or written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from sm120patch.errors import CatalogueError, HostError, UsageError
from sm120patch.operations.releases import chosen_releases
from sm120patch.published import Shelf, known
from tests.support.catalogue import A_TEXT, install, write_catalogue, write_environment
from tests.support.command import run
from tests.support.environments import tree_digest
from tests.support.packages import publish, write_wheel

DRIFTED = A_TEXT.replace("line_30 = 30", "line_30 = 31")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """1.0 as in the environments of the tests, 1.1 drifted, 2.0 upstream, 3.0 unknown."""
    directory = tmp_path / "wheels"
    publish(directory, "1.0", "1.0")
    publish(directory, "1.1", "1.0.post1", DRIFTED)
    publish(directory, "2.0", "2.0")
    publish(directory, "3.0", "3.0")
    return directory


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    root = write_catalogue(tmp_path / "catalogue")
    releases = '[releases]\nsglang = ["1.0", "1.1", "2.0"]\nflashinfer-python = ["1.0"]\n'
    (root / "releases.toml").write_text(releases)
    return root


def outcomes(result: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {
        r["versions"]["sglang"]: {s["id"]: s["outcome"] for s in r["sets"]}
        for r in result["releases"]
    }


def changes(result: dict[str, Any], release: str, set_id: str) -> dict[str, str]:
    (found,) = (r for r in result["releases"] if r["versions"]["sglang"] == release)
    (entry,) = (s for s in found["sets"] if s["id"] == set_id)
    return {c["change"]: c["outcome"] for c in entry["changes"]}


def matrix(catalogue: Path, shelf: Path, *arguments: str | Path) -> Any:
    here = ("--catalogue", catalogue, "--wheel-dir", shelf, "--offline")
    return run("matrix", *here, "--output", "json", *arguments)


def test_every_known_release_is_planned_with_what_it_pins(catalogue: Path, shelf: Path) -> None:
    done = matrix(catalogue, shelf)
    assert done.code == 1, "1.1 has a set that does not fit, which is a finding"
    versions = [r["versions"] for r in done.result["releases"]]
    pairs = [(v["sglang"], v["flashinfer-python"]) for v in versions]
    assert pairs == [("1.0", "1.0"), ("1.1", "1.0.post1"), ("2.0", "2.0")]
    found = outcomes(done.result)
    assert found["1.0"] == dict.fromkeys(("bundle", "clash", "kernel", "one", "two"), "patched")
    assert found["1.1"] == {**found["1.0"], "two": "refused"}
    assert set(found["2.0"].values()) == {"upstream"}
    assert changes(done.result, "1.0", "one") == {"first": "patched", "extra": "patched"}
    assert changes(done.result, "1.1", "two") == {"far": "refused"}
    assert done.result["counts"] == {"patched": 9, "refused": 1, "upstream": 5}
    assert "[3/3] 2.0 (2.0)" in done.err, "progress is talk"


def test_a_release_that_nobody_knows_is_not_applicable_with_the_reason(
    catalogue: Path, shelf: Path
) -> None:
    done = matrix(catalogue, shelf, "one", "--releases", "3.0")
    assert done.code == 0
    (entry,) = done.result["releases"][0]["sets"]
    assert entry["outcome"] == "not-applicable" and "3.0" in entry["reasons"][0]


def test_a_pair_need_not_be_the_pinned_one(catalogue: Path, shelf: Path) -> None:
    done = matrix(catalogue, shelf, "bundle", "kernel", "--releases", "1.0/2.0")
    assert done.result["releases"][0]["versions"] == {"sglang": "1.0", "flashinfer-python": "2.0"}
    assert outcomes(done.result) == {"1.0": {"bundle": "patched", "kernel": "upstream"}}


def test_what_cannot_be_had_is_named_and_the_others_go_on(catalogue: Path, shelf: Path) -> None:
    done = matrix(catalogue, shelf, "one", "--releases", "0.9,1.0")
    assert done.code == 10
    missing, found = done.result["releases"]
    assert "0.9" in missing["error"] and missing["sets"] == []
    assert found["error"] is None and found["sets"][0]["outcome"] == "patched"


def test_markdown_joins_equal_neighbours_and_escapes(catalogue: Path, shelf: Path) -> None:
    done = run("matrix", "one", "two", "--catalogue", catalogue, "--wheel-dir", shelf,
               "--offline", "--markdown")  # fmt: skip
    assert "| 1.1 | 1.0.post1 | patched | **refused** |" in done.out
    assert "| 1.0 to 1.1 | 1.0 to 1.0.post1 | patched | patched | patched |" in done.out
    assert "- `first`, 2.0: upstream since 2.0" in done.out


def test_text_names_each_change(catalogue: Path, shelf: Path) -> None:
    done = run("matrix", "one", "--catalogue", catalogue, "--wheel-dir", shelf, "--offline")
    assert done.code == 0
    assert [line.split()[:2] for line in done.out.splitlines()[:3]] == [
        ["1.0", "(1.0)"], ["first", "patched"], ["extra", "patched"],
    ]  # fmt: skip


def test_sets_of_your_own_are_looked_at_beside_the_others(
    catalogue: Path, shelf: Path, tmp_path: Path
) -> None:
    own, rest = tmp_path / "own", tmp_path / "rest"
    shutil.copytree(catalogue, rest)
    for part, name in (("manifests", "two.toml"), ("patches", "two")):
        (own / part).mkdir(parents=True)
        shutil.move(rest / part / name, own / part / name)
    done = matrix(rest, shelf, "one", "two", "--extra-catalogue", own, "--releases", "1.0")
    assert outcomes(done.result) == {"1.0": {"one": "patched", "two": "patched"}}


def test_an_unknown_set_is_a_usage_error(catalogue: Path, shelf: Path) -> None:
    assert matrix(catalogue, shelf, "nope").code == 2


# --- naming releases ---------------------------------------------------------------------------

KNOWN = {"sglang": ("0.5.2rc0", "0.5.8", "0.5.8.post1", "0.5.9", "0.5.10rc0")}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ((), KNOWN["sglang"]),
        (("0.5.9,0.5.8",), ("0.5.9", "0.5.8")),
        ((">=0.5.8,<0.5.10",), ("0.5.8", "0.5.8.post1", "0.5.9")),
        ((">=0.5.9", "0.5.9", "9.9/0.1"), ("0.5.9", "0.5.10rc0", "9.9/0.1")),
    ],
)
def test_releases_are_named_by_version_range_or_pair(
    spec: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert chosen_releases(spec, KNOWN) == expected


@pytest.mark.parametrize("spec", ["x", "0.5.9/x", "1/2/3", ">=x", ">=9"])
def test_other_names_are_usage_errors(spec: str) -> None:
    with pytest.raises(UsageError):
        chosen_releases((spec,), KNOWN)


def test_the_shipped_list_is_in_order_and_a_catalogue_may_have_its_own(
    tmp_path: Path, catalogue: Path
) -> None:
    from packaging.version import Version

    for versions in known().values():
        assert list(versions) == sorted(set(versions), key=Version)
    assert known(tmp_path) == known() and known(catalogue)["sglang"] == ("1.0", "1.1", "2.0")
    (catalogue / "releases.toml").write_text("[releases]\nsglang = 3\n")
    with pytest.raises(CatalogueError, match=r"releases\.toml"):
        known(catalogue)


def test_a_wheel_is_taken_before_a_source_distribution(shelf: Path) -> None:
    found = Shelf(shelf, print, offline=True)
    source = found.find("flashinfer-python", "1.0")
    assert source is not None and source.name.endswith(".tar.gz")
    wheel = write_wheel(shelf, "flashinfer-python", "1.0", {})
    assert found.find("flashinfer-python", "1.0") == wheel
    assert found.find("flashinfer-python", "1.00") == wheel, "versions are compared, not spellings"


@pytest.mark.network
@pytest.mark.slow
def test_a_release_is_downloaded_once_and_a_missing_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", os.environ["SM120PATCH_TEST_REAL_HOME"])
    said: list[str] = []
    directory = tmp_path / "cache" / "wheels"
    package = Shelf(directory, said.append).get("sglang", "0.5.0rc0")
    assert package.pins["flashinfer-python"] == "0.2.10"
    assert [p.name for p in directory.iterdir()] == [package.path.name], "nothing else is left"
    assert Shelf(directory, said.append, offline=True).get("sglang", "0.5.0rc0") == package
    with pytest.raises(HostError, match=r"sglang 99\.0"):
        Shelf(directory, said.append).get("sglang", "99.0")
    assert said == ["downloading sglang 0.5.0rc0", "downloading sglang 99.0"]
    assert [p.name for p in directory.iterdir()] == [package.path.name]


# --- plan --against ----------------------------------------------------------------------------


class Upgraded:
    def __init__(self, tmp_path: Path, catalogue: Path, shelf: Path) -> None:
        self.prefix, self.shelf = tmp_path / "env", shelf
        self.site = write_environment(self.prefix)
        self.here = ("--env", self.prefix, "--catalogue", catalogue, "--output", "json")

    def against(self, *arguments: str | Path) -> Any:
        before = tree_digest(self.prefix)
        options = ("--wheel-dir", self.shelf, "--offline", *self.here)
        done = run("plan", *arguments, *options)
        assert tree_digest(self.prefix) == before, "nothing is written"
        return done


@pytest.fixture
def upgraded(tmp_path: Path, catalogue: Path, shelf: Path) -> Upgraded:
    return Upgraded(tmp_path, catalogue, shelf)


def drifts(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {f"{d['set']}/{d['change'] or ''}": (d["now"], d["then"]) for d in result["drifts"]}


def test_an_upgrade_brings_what_it_pins_and_every_drift_is_listed(upgraded: Upgraded) -> None:
    done = upgraded.against("bundle", "two", "--against", "1.1")
    assert done.code == 1, "a set is lost"
    assert done.result["now"] == {"sglang": "1.0", "flashinfer-python": "1.0"}
    assert done.result["then"] == {"sglang": "1.1", "flashinfer-python": "1.0.post1"}
    assert drifts(done.result) == {
        "two/": ("patched", "refused"),
        "two/far": ("patched", "refused"),
    }
    assert {s["id"]: s["outcome"] for s in done.result["sets"]} == {
        "one": "patched", "kernel": "patched", "bundle": "patched", "two": "refused",
    }  # fmt: skip


def test_what_was_not_for_the_old_release_either_is_not_lost(upgraded: Upgraded) -> None:
    install(upgraded.site, "3.0")
    for old in upgraded.site.glob("*-1.0.dist-info"):
        shutil.rmtree(old)
    done = upgraded.against("one", "--against", "3.0")
    assert (
        done.result["now"] == done.result["then"] == {"sglang": "3.0", "flashinfer-python": "3.0"}
    )
    assert done.result["sets"][0]["outcome"] == "not-applicable" and done.code == 0


def test_a_wheel_by_path_needs_neither_cache_nor_network(upgraded: Upgraded) -> None:
    wheel = upgraded.shelf / "sglang-2.0-py3-none-any.whl"
    upgraded.shelf = upgraded.prefix
    done = upgraded.against("bundle", "--against", wheel)
    assert done.result["then"] == {"sglang": "2.0", "flashinfer-python": "1.0"}
    (note,) = done.result["notes"]
    assert "pins flashinfer-python 2.0" in note
    assert drifts(done.result)["one/first"] == ("patched", "upstream")
    assert "kernel/gate" not in drifts(done.result)
    assert done.code == 0, "what upstream has is not lost"


def test_without_a_name_it_is_about_the_sets_on_disk_and_their_selection(
    upgraded: Upgraded,
) -> None:
    done = run("apply", "one", "--with", "extra", "--no-verify", "--allow-running", *upgraded.here)
    assert done.code == 0
    done = upgraded.against("--against", "flashinfer-python==2.0", "--against", "2.0")
    assert [s["id"] for s in done.result["sets"]] == ["one"]
    assert drifts(done.result) == dict.fromkeys(
        ("one/", "one/first", "one/extra"), ("patched", "upstream")
    )


def test_sets_that_fit_one_by_one_but_not_together_are_noted(upgraded: Upgraded) -> None:
    done = upgraded.against("one", "clash", "--against", "1.1")
    assert done.code == 1 and not done.result["drifts"]
    assert all(note.startswith("together: ") for note in done.result["notes"])


def test_text_marks_what_changes(upgraded: Upgraded) -> None:
    options = ("--wheel-dir", upgraded.shelf, "--offline", *upgraded.here[:-2])
    done = run("plan", "two", "--against", "1.1", *options)
    assert "sglang  1.0 -> 1.1" in done.out
    assert "patched -> refused" in next(x for x in done.out.splitlines() if x.startswith("*"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("one", "--against", "nonsense!"),
        ("one", "--against", "1.0,1.1"),
        ("--against", "1.0"),
        ("one", "--against", "1.0", "--revert"),
        ("one", "--with", "nope", "--against", "1.0"),
        (),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(
    upgraded: Upgraded, arguments: tuple[str, ...]
) -> None:
    done = upgraded.against(*arguments)
    assert done.code == 2 and done.error["message"]
