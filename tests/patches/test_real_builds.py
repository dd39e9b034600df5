"""Published FlashInfer, real ninja, real nvcc: builds follow, and declared PTX counts hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm120patch import catalogue, versions
from sm120patch.caches import freshness
from sm120patch.compiling.proof import prove
from sm120patch.compiling.running import Limit
from sm120patch.model import Changed, PayloadKind
from tests.support import jit, real_sglang
from tests.support.command import run
from tests.support.real_flashinfer import (
    EXCEPTION,
    MARK,
    PAGE,
    RealFlashInfer,
    dependents,
    write_catalogue,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(not real_sglang.supported(), reason="the recipe is for CPython 3.11"),
]
GENERATOR = "flashinfer.jit.page:gen_page_module"


@pytest.fixture(scope="module", params=["0.6.3", "0.6.13"])
def flashinfer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealFlashInfer]:
    """0.6.3 writes a build file where there is none, 0.6.13 at every build."""
    yield RealFlashInfer(tmp_path_factory.mktemp(request.param), request.param)


def test_a_real_module_follows_an_apply_a_revert_and_a_second_apply(
    flashinfer: RealFlashInfer, tmp_path: Path
) -> None:
    made = flashinfer.build(GENERATOR)
    assert made.worked and made.arch == ("120a" if flashinfer.version == "0.6.3" else "120f")
    library = made.directory / "page.so"
    upstream = library.read_bytes()
    options = ["--env", flashinfer.prefix, "--output", "json"]
    options += ["--catalogue", write_catalogue(tmp_path / "catalogue", flashinfer.site)]
    home = {"HOME": str(flashinfer.home)}

    def done(*words: str) -> None:
        ran = run(*words, *options, **home)
        assert ran.code == 0, ran.out + ran.err

    expected = dependents(made.directory, flashinfer.site / PAGE, flashinfer.environ)
    assert expected, "ninja's own log names the header"
    done("apply", "mark", "--no-verify", "--gpu", "12.0")
    work = freshness.work_to_do(made.directory, jit.ninja())
    assert work is not None and set(work) == {*expected, str(library)}
    assert flashinfer.build(GENERATOR).worked
    assert not flashinfer.build(GENERATOR).worked
    patched = library.read_bytes()

    done("revert", "mark")
    assert freshness.work_to_do(made.directory, jit.ninja()) == ()
    assert library.read_bytes() == upstream
    assert not flashinfer.build(GENERATOR).worked, "FlashInfer itself finds nothing to do"

    done("apply", "mark", "--no-verify", "--gpu", "12.0")
    assert MARK in (flashinfer.site / PAGE).read_text()
    assert not flashinfer.build(GENERATOR).worked
    assert library.read_bytes() == patched
    done("revert", "mark")


def test_a_kernel_that_sglang_builds_through_tvm_ffi_follows_too(
    flashinfer: RealFlashInfer, tmp_path: Path
) -> None:
    library = flashinfer.build_kernel(EXCEPTION)
    upstream = library.read_bytes(), library.stat().st_mtime_ns
    catalogue_dir = write_catalogue(tmp_path / "catalogue", flashinfer.site, EXCEPTION)
    options = ["--env", flashinfer.prefix, "--catalogue", catalogue_dir, "--output", "json"]
    home = {"HOME": str(flashinfer.home)}
    ran = run("apply", "mark", "--no-verify", "--gpu", "12.0", *options, **home)
    assert ran.code == 0, ran.out
    assert not library.exists()
    assert flashinfer.build_kernel(EXCEPTION) == library
    assert (library.read_bytes(), library.stat().st_mtime_ns) != upstream
    ran = run("revert", "mark", *options, **home)
    assert ran.code == 0, ran.out
    assert freshness.work_to_do(library.parent, jit.ninja()) == ()
    flashinfer.build_kernel(EXCEPTION)
    assert (library.read_bytes(), library.stat().st_mtime_ns) == upstream


def test_the_declared_counts_are_what_nvcc_makes_of_the_release(
    flashinfer: RealFlashInfer, tmp_path: Path
) -> None:
    shipped = catalogue.load().get("allreduce-arch-gate")
    version = versions.installed(flashinfer.version)
    assert version is not None
    (check,) = [c for c in shipped.compile if version in versions.parse(c.versions)]
    upstream = {}
    for change in shipped.changes:
        chosen, _ = catalogue.choose(change, {"flashinfer-python": flashinfer.version})
        if change.optional or getattr(chosen, "kind", PayloadKind.FILE) is PayloadKind.FILE:
            continue
        file = flashinfer.site / chosen.path
        upstream[chosen.path] = file.read_bytes()
        made = catalogue.edit(chosen, file.read_bytes())
        assert isinstance(made, Changed)
        file.unlink()
        file.write_bytes(made.data)
    directory = flashinfer.write_build_file(check.generator)
    assert directory.name == check.module
    proofs = prove(
        check.ptx,
        directory,
        jit.ninja(),
        flashinfer.site,
        upstream,
        flashinfer.environ,
        tmp_path,
        Limit.of(1500),
        print,
    )
    sys.stderr.write(json.dumps([str(proof) for proof in proofs]) + "\n")
    assert [(p.expected.arch, p.before, p.after, p.holds) for p in proofs] == [
        ("120a", 0, 918, True),
        ("90a", 918, 918, True),
    ]
    assert proofs[1].same
