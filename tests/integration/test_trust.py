"""Whom a command believes: signed catalogues, and prefixes that others can write."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.catalogue import A
from tests.support.command import Ran, run
from tests.support.place import Place, checked, refused

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has others to beware of")


class Signers:
    """Two key pairs, and a file that allows the first."""

    def __init__(self, root: Path) -> None:
        for name in ("mine", "other"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", root / name]
            subprocess.run(words, check=True)
        self.key, self.other = root / "mine", root / "other"
        public = (root / "mine.pub").read_text()
        self.allowed = root / "allowed_signers"
        self.allowed.write_text(f'ops@example.org namespaces="sm120patch-catalogue" {public}')


@pytest.fixture
def signers(tmp_path: Path) -> Signers:
    return Signers(tmp_path)


@pytest.fixture
def trusting(place: Place, signers: Signers, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("SM120PATCH_ALLOWED_SIGNERS", str(signers.allowed))
    return place


def sign(directory: Path, key: Path) -> Ran:
    return checked(run("sign", directory, "--key", key, "--output", "json"))


@needs_ssh
def test_a_signed_catalogue_is_used_as_any_other(trusting: Place, signers: Signers) -> None:
    signed = sign(trusting.catalogue, signers.key)
    assert signed.code == 0 and signed.result["files"] >= 5 + 4
    trusting.stage("one")
    assert trusting.changed() == {A}


@needs_ssh
@needs_root
def test_a_catalogue_that_cannot_be_written_is_not_signed(place: Place, signers: Signers) -> None:
    if subprocess.run(["chattr", "+i", place.catalogue], check=False).returncode:
        pytest.skip("no such flags here")
    try:
        refused(sign(place.catalogue, signers.key), 10, "cannot be written")
    finally:
        subprocess.run(["chattr", "-i", place.catalogue], check=True)


def edit(catalogue: Path) -> None:
    manifest = catalogue / "manifests" / "one.toml"
    manifest.write_text(manifest.read_text().replace("Set one", "Set evil"))


def add(catalogue: Path) -> None:
    shutil.copy(catalogue / "manifests" / "one.toml", catalogue / "manifests" / "more.toml")


def take_away(catalogue: Path) -> None:
    (catalogue / "patches" / "one" / "extra.patch").unlink()


def list_anew(catalogue: Path) -> None:
    """An attacker can write the list, but not the signature of it."""
    edit(catalogue)
    from sm120patch import signing

    (catalogue / signing.LIST).write_bytes(signing.listing(catalogue))


@needs_ssh
@pytest.mark.parametrize("change", [edit, add, take_away, list_anew])
def test_a_catalogue_that_was_changed_since_is_refused(
    trusting: Place, signers: Signers, change: Callable[[Path], None]
) -> None:
    sign(trusting.catalogue, signers.key)
    change(trusting.catalogue)
    error = refused(trusting.run("apply", "kernel", "--no-verify"), 3, "cannot be trusted")
    assert error["code"] == "untrusted-catalogue"
    trusting.assert_nothing_written()


@needs_ssh
def test_unsigned_or_signed_by_somebody_else_is_refused(trusting: Place, signers: Signers) -> None:
    refused(trusting.run("status"), 3, "not signed")
    sign(trusting.catalogue, signers.other)
    refused(trusting.run("apply", "one", "--no-verify"), 3, "no signer")
    trusting.assert_nothing_written()


@needs_ssh
def test_a_signature_for_another_purpose_is_none(trusting: Place, signers: Signers) -> None:
    sign(trusting.catalogue, signers.key)
    listed = trusting.catalogue / "CATALOGUE.sha256"
    words = ["ssh-keygen", "-q", "-Y", "sign", "-f", signers.key, "-n", "file"]
    made = subprocess.run(words, input=listed.read_bytes(), capture_output=True, check=True)
    (trusting.catalogue / "CATALOGUE.sha256.sig").write_bytes(made.stdout)
    refused(trusting.run("status"), 3, "no signer")


@needs_ssh
def test_links_in_a_catalogue_are_not_signed(place: Place, signers: Signers) -> None:
    (place.catalogue / "patches" / "link").symlink_to("/etc/passwd")
    refused(sign(place.catalogue, signers.key), 3, "no regular file")


def test_without_named_signers_nothing_is_asked(place: Place) -> None:
    place.stage("one")


def test_signers_that_are_named_must_be_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SM120PATCH_ALLOWED_SIGNERS", str(place.root / "nobody"))
    refused(checked(run("list", *place.options[2:])), 2, "no file")


NOBODY = 65534


@needs_root
@pytest.mark.parametrize("what", ["prefix", "package", "python"])
def test_root_neither_runs_nor_writes_what_a_user_can_exchange(place: Place, what: str) -> None:
    python = place.prefix / "bin" / "python3"
    theirs = {"prefix": place.prefix, "package": place.site / "sglang", "python": python}[what]
    os.chown(theirs, NOBODY, NOBODY, follow_symlinks=False)
    error = refused(place.run("apply", "one", "--no-verify"), 10, str(theirs), "sudo -u")
    assert error["code"] == "untrusted-prefix"
    place.assert_nothing_written()
    assert place.run("status").code == 10, "the interpreter is theirs too"


@needs_root
def test_a_directory_below_the_package_that_everybody_can_write_is_refused(place: Place) -> None:
    include = place.site / "flashinfer" / "data" / "include"
    include.chmod(0o777)
    refused(place.run("apply", "bundle", "--no-verify"), 10, str(include), "everybody")
    include.chmod(0o755)
    place.assert_nothing_written()


@needs_root
def test_root_can_be_told_whom_to_trust(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(place.prefix, NOBODY, NOBODY)
    monkeypatch.setenv("SM120PATCH_TRUSTED_OWNERS", str(NOBODY))
    place.stage("one")
    monkeypatch.setenv("SM120PATCH_TRUSTED_OWNERS", "no-such-user")
    refused(place.run("status"), 2, "no-such-user")


@needs_root
def test_a_link_slipped_in_does_not_lead_a_write_of_root_away(place: Place) -> None:
    """Between the plan and the write somebody exchanges a directory for a link."""
    from tests.support.command import run_after

    outside = place.root / "outside"
    shutil.copytree(place.site / "sglang", outside)
    before = {p.name: p.read_bytes() for p in outside.iterdir() if p.is_file()}
    for moment in ("journal opened", f"stage {A}"):
        statements = f"""
import os, pathlib
from sm120patch import transaction
package = pathlib.Path({str(place.site / "sglang")!r})
def at(label):
    if label == {moment!r}:
        package.rename(package.with_name("aside"))
        package.symlink_to({str(outside)!r})
transaction.on_checkpoint = at
"""
        ran = checked(run_after(statements, "apply", "one", "--no-verify", *place.options))
        assert ran.code in (5, 6, 7), ran.out
        assert {p.name: p.read_bytes() for p in outside.iterdir() if p.is_file()} == before
        assert not list(outside.glob(".sm120patch*"))
        (place.site / "sglang").unlink()
        (place.site / "aside").rename(place.site / "sglang")
        place.done("recover")
        assert place.changed() == set() and place.litter() == []
