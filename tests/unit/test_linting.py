"""`lint` finds every fault at once, and warns of what will go wrong later."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm120patch import catalogue as catalogues
from sm120patch.catalogue import Places, collect
from sm120patch.linting import Report, lint, traps
from tests.support.catalogue import A_TEXT, KERNEL, A, B, write_catalogue

TODAY = datetime.date(2026, 12, 1)


@dataclass(frozen=True)
class Release:
    target: str
    version: str
    files: Mapping[str, bytes]

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)


def lint_all(root: Path, *releases: Release, today: datetime.date = TODAY) -> Report:
    found = collect(Places(root))
    return lint(found, sorted(found.files), releases, today)


def texts(remarks: object) -> str:
    return "\n".join(f"{r.set_id}: {r.message}" for r in remarks)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_catalogue(tmp_path)


def edit(root: Path, set_id: str, old: str, new: str) -> None:
    file = root / "manifests" / f"{set_id}.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_sound_catalogue_has_no_faults(root: Path) -> None:
    report = lint_all(
        root, Release("sglang", "1.0", {A: A_TEXT.encode(), B: b"value = 'upstream'\n"})
    )
    assert not report.faults, texts(report.faults)


def test_faults_of_all_kinds_and_sets_are_listed_at_once(root: Path) -> None:
    edit(root, "one", 'versions = ">=2.0,<3.0"', 'versions = ">=1.5,<3.0"')
    edit(root, "two", "sha256 = ", 'colour = "red"\nsha256 = ')
    (root / "patches" / "clash" / "same.patch").write_bytes(b"x")
    edit(root, "bundle", '"kernel"', '"kernel", "nowhere"')
    (root / "patches" / "kernel" / "gate.patch").write_bytes(b"no diff")
    import hashlib

    digest = hashlib.sha256(b"no diff").hexdigest()
    text = (root / "manifests" / "kernel.toml").read_text()
    line = next(x for x in text.splitlines() if x.startswith("sha256"))
    edit(root, "kernel", line, f'sha256 = "{digest}"')
    report = lint_all(root)
    found = texts(report.faults)
    for part in ("one: one.toml: change[0].window[0].versions", "overlaps", "two: two.toml",
                 "colour: unknown key", "clash: clash.toml", "sha256", "kernel: kernel/gate.patch",
                 "bundle: bundle.toml", "nowhere"):  # fmt: skip
        assert part in found, (part, found)
    assert "no set is named 'one'" not in found  # a broken dependency is named once


def test_a_stale_comparison_is_judged_by_the_clock_that_is_handed_in(root: Path) -> None:
    checked = datetime.date(2026, 11, 29)
    fresh = lint_all(root, today=checked + datetime.timedelta(days=90))
    assert "days ago" not in texts(fresh.warnings)
    stale = lint_all(root, today=checked + datetime.timedelta(days=91))
    assert texts(stale.warnings).count("91 days ago") == 5 and not stale.faults
    assert "in the future" in texts(lint_all(root, today=datetime.date(2026, 1, 1)).warnings)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([">=0.5.8,<0.5.10", ">=0.5.10,<0.6"], "pre-releases of sglang 0.5.10 are in no range"),
        ([">=0.5.8,<0.5.10rc0", ">=0.5.10rc0,<0.6"], ""),
        ([">=0.5.8,<0.5.9", ">=0.5.9.post1,<0.6"], "from 0.5.9.dev0 to before 0.5.9.post1"),
        ([">=0.5.9,<0.5.9.post0", ">=0.5.9.post1,<0.6"], ""),
        ([">=0.5.12,<0.6", ">=0.5.8,<0.5.10"], "from 0.5.10.dev0 to before 0.5.12"),
        (["<0.5.8", ">=0.5.8"], "pre-releases of sglang 0.5.8"),
        (["==0.5.*", ">=0.6.dev0,<0.7"], ""),
    ],
)
def test_ranges_that_only_look_as_if_they_met(ranges: list[str], expected: str) -> None:
    found = "\n".join(traps("sglang", ranges))
    assert (expected in found) if expected else not found, found


@pytest.mark.parametrize(
    ("published", "warned"),
    [((), True), (("0.5.9", "0.5.10"), False), (("0.5.9", "0.5.10rc0", "0.5.10"), True)],
)
def test_a_gap_in_which_nothing_was_published_is_none(
    published: tuple[str, ...], warned: bool
) -> None:
    found = list(traps("sglang", [">=0.5.8,<0.5.10", ">=0.5.10,<0.6"], published))
    assert bool(found) is warned, found


def test_the_shipped_catalogue_has_no_remark() -> None:
    from sm120patch.operations import linting
    from sm120patch.published import Shelf

    shelf = Shelf(Path("/nonexistent"), lambda _text: None, offline=True)
    found = linting.lint(Places(), (), (), shelf, TODAY)
    assert len(found.names) > 10
    assert (found.report.faults, found.report.warnings) == ((), ())


def test_open_ends_and_texts_to_be_written_are_warned_of(root: Path) -> None:
    edit(root, "two", 'versions = ">=1.0,<2.0"', 'versions = ">=3.0"')
    edit(root, "two", 'description = "For tests."', 'description = "TODO"')
    found = texts(lint_all(root).warnings)
    assert "has no upper end" in found and "description is still to be written" in found


def test_a_release_is_tried_with_anchors_and_post_conditions(root: Path) -> None:
    files = {
        A: A_TEXT.replace("line_3 = 3\n", "line_3 = 'one'\n").encode(),
        B: b"value = 'other'\n",
    }
    report = lint_all(root, Release("sglang", "1.5", files), Release("sglang", "9.0", files))
    faults, warnings = texts(report.faults), texts(report.warnings)
    assert "one: extra: sglang 1.5: sglang/b.py: hunk 1" in faults
    assert "clash: same: sglang 1.5" in faults
    assert "one: first: sglang 1.5: sglang/a.py meets the post-conditions already" in warnings
    assert "two: far: sglang 9.0: is in no range" in warnings
    missing = lint_all(root, Release("flashinfer-python", "1.0", {}))
    assert f"has no {KERNEL}" in texts(missing.faults)


def test_a_window_that_says_upstream_is_held_to_it(root: Path) -> None:
    lacking = Release("sglang", "2.0", {A: A_TEXT.encode()})
    assert "two: far: sglang 2.0: is said to have it" in texts(lint_all(root, lacking).warnings)
    having = A_TEXT.replace("line_30 = 30\n", "line_30 = 'two'\n").encode()
    report = lint_all(root, Release("sglang", "2.0", {A: having}))
    assert "two: far: sglang 2.0" not in texts(report.warnings)
    edit(root, "two", '"upstream"\nreason', '"not-needed"\nreason')
    assert "two/far.patch fits" in texts(lint_all(root, lacking).warnings)


def test_an_unwritten_codemod_is_a_fault(tmp_path: Path) -> None:
    from sm120patch.authoring.draft import Brief, Draft, Edited, compose

    brief = Brief("mine", "sglang", "1.0", "Mine", ("12.0",), "2026-11-29")
    draft = compose(brief, [Edited(A, A_TEXT.encode(), A_TEXT[8:].encode())])
    assert isinstance(draft, Draft)
    for name, data in draft.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert catalogues.load(tmp_path).ids == ("mine",)
    release = Release("sglang", "1.0", {A: A_TEXT.encode()})
    report = lint_all(tmp_path, release)
    assert texts(report.faults).count("write the edit") == 2
