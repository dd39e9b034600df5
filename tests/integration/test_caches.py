from __future__ import annotations

import py_compile
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm120patch.caches import bytecode, flashinfer
from sm120patch.caches.builds import PRISTINE, Entry, build_key
from sm120patch.caches.flashinfer import Affected, ChangedFile
from sm120patch.caches.generators import changed_modules, modules_from
from sm120patch.caches.includes import IncludeGraph
from sm120patch.caches.ninja import BuildFile, read_build_file, read_deps_log
from tests.support import jit
from tests.support.jit import ALLREDUCE, COMM, FUSION


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return jit.install_sources(tmp_path / "site-packages")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    directory = tmp_path / "home" / ".cache" / "flashinfer"
    directory.mkdir(parents=True)
    return directory


def scan(workspace: Path, root: Path, *changed: ChangedFile | str) -> Affected:
    files = [ChangedFile(item) if isinstance(item, str) else item for item in changed]
    return flashinfer.affected([workspace], root, "0.6.3", files)


def names(result: Affected) -> list[str]:
    return [entry.module for entry in result.entries]


# --- bytecode -----------------------------------------------------------------------------------


def test_every_cached_form_of_one_module_goes_and_no_other(tmp_path: Path) -> None:
    for name in ("gate.py", "gateway.py"):
        (tmp_path / name).write_text("x = 1\n")
        for level in (0, 1, 2):
            py_compile.compile(str(tmp_path / name), optimize=level)
    old = tmp_path / "__pycache__" / "gate.cpython-39.pyc"
    old.write_bytes(b"")
    removed = bytecode.purge(tmp_path, "gate.py")
    assert len(removed) == 4 and old in removed
    left = sorted(path.name for path in (tmp_path / "__pycache__").iterdir())
    assert len(left) == 3 and all(name.startswith("gateway.") for name in left)


def test_the_tree_of_the_pycache_prefix_is_cleaned_too(tmp_path: Path) -> None:
    source, tree = tmp_path / "pkg" / "gate.py", tmp_path / "tree"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    code = "import py_compile, sys; py_compile.compile(sys.argv[1])"
    command = [sys.executable, "-X", f"pycache_prefix={tree}", "-c", code, source]
    subprocess.run(command, check=True)
    (cached,) = tree.rglob("gate*.pyc")
    assert bytecode.purge(tmp_path, "pkg/gate.py", [tree]) == [cached]
    assert not cached.exists()


def test_absent_bytecode_and_other_files_are_fine(tmp_path: Path) -> None:
    assert bytecode.purge(tmp_path, "none/at/all.py", [tmp_path / "tree"]) == []
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "kernel.x.pyc").write_bytes(b"")
    assert bytecode.purge(tmp_path, "kernel.cuh") == []


def test_a_linked_pycache_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    victim = tmp_path / "elsewhere" / "gate.cpython-311.pyc"
    victim.write_bytes(b"")
    (tmp_path / "__pycache__").symlink_to(tmp_path / "elsewhere")
    assert bytecode.purge(tmp_path, "gate.py") == []
    assert victim.exists()


# --- ninja's files ------------------------------------------------------------------------------


def test_the_log_of_a_real_ninja_lists_every_header(root: Path, workspace: Path) -> None:
    library, _ = jit.build(workspace, root, "trtllm_comm")
    log = read_deps_log(library.parent / ".ninja_deps")
    assert log is not None
    fusion = log[str(library.parent / "trtllm_allreduce_fusion.cuda.o")]
    assert fusion[0] == str(root / "flashinfer/data/csrc/trtllm_allreduce_fusion.cu")
    assert str(root / FUSION) in fusion and str(root / ALLREDUCE) not in fusion


def record(payload: bytes, deps: bool = False) -> bytes:
    return struct.pack("<I", len(payload) | (0x80000000 if deps else 0)) + payload


def path_record(number: int, name: bytes) -> bytes:
    return record(name + b"\0" * (-len(name) % 4) + struct.pack("<I", ~number & 0xFFFFFFFF))


def log_file(tmp_path: Path, version: int, *records: bytes) -> Path:
    path = tmp_path / "log"
    path.write_bytes(b"# ninjadeps\n" + struct.pack("<i", version) + b"".join(records))
    return path


PATHS = (path_record(0, b"a.o"), path_record(1, b"a.cu"), path_record(2, b"head.cuh"))


def test_both_known_versions_of_the_log_are_read(tmp_path: Path) -> None:
    three = record(struct.pack("<iIii", 0, 1234, 1, 2), deps=True)
    four = record(struct.pack("<iIIii", 0, 1234, 5, 1, 2), deps=True)
    expected = {"a.o": ("a.cu", "head.cuh")}
    assert read_deps_log(log_file(tmp_path, 3, *PATHS, three)) == expected
    assert read_deps_log(log_file(tmp_path, 4, *PATHS, four)) == expected


def test_a_later_record_of_an_output_replaces_the_earlier(tmp_path: Path) -> None:
    records = [record(struct.pack("<iIIi", 0, 1, 0, number), deps=True) for number in (1, 2)]
    assert read_deps_log(log_file(tmp_path, 4, *PATHS, *records)) == {"a.o": ("head.cuh",)}


@pytest.mark.parametrize(
    "bad",
    [
        record(struct.pack("<iIIi", 0, 1, 0, 99), deps=True),
        record(struct.pack("<iIIi", -1, 1, 0, 1), deps=True),
        record(struct.pack("<i", 0), deps=True),
        path_record(7, b"wrong number"),
        struct.pack("<I", 0x7FFFFFFF),
        struct.pack("<I", 3) + b"abc",
        b"\x01",
    ],
    ids=["unknown id", "negative id", "too short", "checksum", "huge", "unaligned", "cut"],
)
def test_a_damaged_tail_is_dropped(tmp_path: Path, bad: bytes) -> None:
    good = record(struct.pack("<iIIi", 0, 1, 0, 1), deps=True)
    assert read_deps_log(log_file(tmp_path, 4, *PATHS, good, bad)) == {"a.o": ("a.cu",)}


def test_a_log_cut_anywhere_gives_a_part_of_the_truth(root: Path, workspace: Path) -> None:
    library, _ = jit.build(workspace, root, "trtllm_comm")
    log = library.parent / ".ninja_deps"
    whole, data = read_deps_log(log), log.read_bytes()
    assert whole is not None
    for size in range(0, len(data), 7):
        log.write_bytes(data[:size])
        part = read_deps_log(log)
        assert part is None or part.items() <= whole.items()


@pytest.mark.parametrize("data", [b"", b"# ninjadeps\n", b"# ninjadeps\n\x05\0\0\0", b"\0" * 99])
def test_what_is_no_known_log_is_unreadable(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "log").write_bytes(data)
    assert read_deps_log(tmp_path / "log") is None
    assert read_deps_log(tmp_path / "absent") is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=40)), max_size=8), st.binary(max_size=9)
)
def test_any_records_are_read_without_a_traceback(
    tmp_path: Path, records: list[tuple[bool, bytes]], tail: bytes
) -> None:
    written = [record(payload, deps) for deps, payload in records]
    found = read_deps_log(log_file(tmp_path, 4, *PATHS, *written, tail))
    assert found is not None


def test_sources_and_include_directories_are_read_from_a_build_file(
    root: Path, workspace: Path
) -> None:
    library, _ = jit.build(workspace, root, "binding")
    found = read_build_file(library.parent / "build.ninja")
    data = root / "flashinfer" / "data"
    assert found == BuildFile(
        {str(library.parent / "binding.o"): str(data / "csrc" / "binding.cpp")},
        (str(data / "include"), str(data / "csrc")),
        (str(library),),
    )
    (library.parent / "build.ninja").write_bytes(b"\xff\xfe\0")
    assert read_build_file(library.parent / "build.ninja") is None


def test_implicit_inputs_do_not_hide_a_source(tmp_path: Path) -> None:
    (tmp_path / "build.ninja").write_text(
        "build a.o: cuda_compile a.cu | h.cuh || stamp\nbuild b.o: compile b.cc\n"
        "build m.so: link a.o b.o | libx.so\n"
    )
    found = read_build_file(tmp_path / "build.ninja")
    assert found is not None
    assert (found.sources, found.links) == ({"a.o": "a.cu", "b.o": "b.cc"}, ("m.so",))


# --- includes and generators --------------------------------------------------------------------


def test_includes_are_followed_through_directories_and_relative_paths(root: Path) -> None:
    graph = IncludeGraph([str(root)])
    directories = [str(root / "flashinfer/data/include")]
    fusion = str(root / "flashinfer/data/csrc/trtllm_allreduce_fusion.cu")
    page = str(root / "flashinfer/data/include/flashinfer/page.cuh")
    assert graph.reaches(fusion, directories, {page}) == page
    assert graph.reaches(fusion, directories, {str(root / ALLREDUCE)}) is None


def test_including_never_leaves_the_roots(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    secret = tmp_path / "secret.h"
    secret.write_text('#include "in/wanted.h"\n')
    wanted = tmp_path / "in" / "wanted.h"
    wanted.write_text("")
    (tmp_path / "in" / "link.h").symlink_to(secret)
    for line in ('#include "../secret.h"', f'#include "{secret}"', '#include "link.h"'):
        source = tmp_path / "in" / "a.cu"
        source.write_text(line + "\n")
        graph = IncludeGraph([str(tmp_path / "in")])
        assert graph.reaches(str(source), [], {str(wanted)}) is None
        assert IncludeGraph([str(tmp_path)]).reaches(str(source), [], {str(wanted)})


def test_headers_that_include_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text('#include "b.h"\n')
    (tmp_path / "b.h").write_text('  #  include <a.h>\n#include "missing.h"\n#include MACRO\n')
    graph = IncludeGraph([str(tmp_path)])
    assert graph.reaches(str(tmp_path / "a.h"), [str(tmp_path)], {"/none"}) is None


SOURCE = jit.SOURCES[COMM].encode()


@pytest.mark.parametrize(
    ("old", "new", "modules"),
    [
        (b"[9, 10]", b"[9, 10, 12]", ("trtllm_comm",)),
        (b'"vllm.cu"', b'"v2.cu"', ("vllm_comm",)),
        (b"from .core", b"from .other", ("trtllm_comm", "vllm_comm")),
        (b"def gen_vllm_comm_module", b"def gen_v2_module", ("vllm_comm",)),
        (b"[9, 10])\n", b"[9, 10])  # comment only\n", ()),
    ],
)
def test_a_generator_change_concerns_its_own_modules(
    old: bytes, new: bytes, modules: tuple[str, ...]
) -> None:
    assert old in SOURCE
    assert changed_modules((SOURCE, SOURCE.replace(old, new))) == modules


def test_without_a_comparison_every_module_of_the_file_is_meant() -> None:
    assert changed_modules((SOURCE,)) == ("trtllm_comm", "vllm_comm")
    assert changed_modules(()) == ("*",)
    assert changed_modules((SOURCE, b"def (:")) == ("*",)
    assert changed_modules((b"x = 1\n", b"x = 2\n")) == ()


@pytest.mark.parametrize(
    ("expression", "pattern"),
    [
        ("f'fused_moe_{arch}'", "fused_moe_*"),
        ("f'{a}{b}_x'", "*_x"),
        ("name", "gemm_*"),
        ("other", "*"),
        ("get_uri(x)", "*"),
        ("'odd[1]*'", "odd[[]1][*]"),
    ],
)
def test_computed_names_become_patterns(expression: str, pattern: str) -> None:
    source = f"def g(other):\n    name = f'gemm_{{x}}'\n    gen_jit_spec({expression}, [])\n"
    assert changed_modules((source.encode(),)) == (pattern,)


def test_generators_are_found_by_the_sources_they_name() -> None:
    assert modules_from(SOURCE, ["trtllm_allreduce.cu"]) == ("trtllm_comm",)
    assert modules_from(SOURCE, ["other.cu"]) == ()


# --- which builds are affected ------------------------------------------------------------------


def test_only_builds_that_include_the_header_are_affected(root: Path, workspace: Path) -> None:
    for module in ("trtllm_comm", "page"):
        jit.build(workspace, root, module)
    (entry,) = scan(workspace, root, ALLREDUCE).entries
    assert (entry.module, entry.arch, entry.version) == ("trtllm_comm", "120a", "0.6.3")
    assert entry.paths == (ALLREDUCE,) and entry.built_from is None
    assert "dependency log" in entry.reason
    assert names(scan(workspace, root, "flashinfer/data/include/flashinfer/page.cuh")) == [
        "page",
        "trtllm_comm",
    ]


def test_every_arch_directory_is_looked_at(root: Path, workspace: Path) -> None:
    for arch in ("120a", "90a_120a"):
        jit.build(workspace, root, "trtllm_comm", arch)
    assert [e.arch for e in scan(workspace, root, ALLREDUCE).entries] == ["120a", "90a_120a"]


def test_without_a_log_the_include_lines_decide(root: Path, workspace: Path) -> None:
    library, _ = jit.build(workspace, root, "trtllm_comm")
    jit.build(workspace, root, "page")[0].with_name(".ninja_deps").unlink()
    library.with_name(".ninja_deps").write_bytes(b"garbage")
    (entry,) = scan(workspace, root, ALLREDUCE).entries
    assert entry.module == "trtllm_comm"
    assert entry.reason == "trtllm_allreduce.cu includes the file"


def test_cxx_sources_are_scanned_although_their_log_hides_system_headers(
    root: Path, workspace: Path
) -> None:
    library, _ = jit.build(workspace, root, "binding")
    log = read_deps_log(library.with_name(".ninja_deps"))
    assert log and not any(str(root / ALLREDUCE) in inputs for inputs in log.values())
    assert names(scan(workspace, root, ALLREDUCE)) == ["binding"]


def test_a_build_of_another_installation_is_affected_and_named(
    root: Path, workspace: Path, tmp_path: Path
) -> None:
    other = jit.install_sources(tmp_path / "other")
    library, _ = jit.build(workspace, other, "trtllm_comm")
    (entry,) = scan(workspace, root, ALLREDUCE).entries
    assert entry.built_from == str(other / ALLREDUCE)
    library.with_name(".ninja_deps").unlink()
    (entry,) = scan(workspace, root, ALLREDUCE).entries
    assert entry.built_from == str(other / "flashinfer/data/csrc/trtllm_allreduce.cu")


def test_a_linked_prefix_is_recognised(root: Path, workspace: Path, tmp_path: Path) -> None:
    jit.build(workspace, root, "trtllm_comm")
    (tmp_path / "alias").symlink_to(root)
    (entry,) = scan(workspace, tmp_path / "alias", ALLREDUCE).entries
    assert entry.built_from is None


def test_the_module_of_a_changed_generator_is_affected(root: Path, workspace: Path) -> None:
    for module in ("trtllm_comm", "page", "binding"):
        jit.build(workspace, root, module)
    changed = ChangedFile(COMM, (SOURCE, SOURCE.replace(b"[9, 10]", b"[9, 10, 12]")))
    (entry,) = scan(workspace, root, changed).entries
    assert entry.module == "trtllm_comm" and "comm.py generates" in entry.reason
    assert len(scan(workspace, root, "flashinfer/jit/core.py").entries) == 3
    assert names(scan(workspace, root, ChangedFile("flashinfer/comm.py", (b"a=1", b"a=2")))) == []


def test_the_modules_of_a_changed_template_are_affected(root: Path, workspace: Path) -> None:
    jit.build(workspace, root, "trtllm_comm")
    jit.build(workspace, root, "page")
    with (root / "flashinfer/jit/page.py").open("a") as stream:
        stream.write("def g():\n    read('page_inst.jinja')\n    gen_jit_spec('page', [])\n")
    assert names(scan(workspace, root, "flashinfer/data/csrc/page_inst.jinja")) == ["page"]


def test_an_unbuilt_module_is_still_expected(root: Path) -> None:
    assert flashinfer.expected_modules(root, [ChangedFile(ALLREDUCE)]) == ("trtllm_comm",)
    page = "flashinfer/data/include/flashinfer/page.cuh"
    assert flashinfer.expected_modules(root, [ChangedFile(page)]) == ("trtllm_comm", "page")


def test_links_in_a_workspace_are_reported_and_not_followed(
    root: Path, workspace: Path, tmp_path: Path
) -> None:
    library, _ = jit.build(workspace, root, "trtllm_comm")
    library.parent.rename(tmp_path / "moved")
    library.parent.symlink_to(tmp_path / "moved")
    result = scan(workspace, root, ALLREDUCE)
    assert result.entries == ()
    assert str(library.parent) in result.problems[0]
    for directory in (library.parents[1], library.parents[3], workspace / ".sm120patch"):
        if directory.exists():
            directory.rename(tmp_path / f"moved-{directory.name}")
        directory.symlink_to(tmp_path / f"moved-{directory.name}")
        problems = scan(workspace, root, ALLREDUCE).problems
        assert any(str(directory) in text for text in problems)


def test_hostile_names_and_files_are_harmless(root: Path, workspace: Path) -> None:
    library, _ = jit.build(workspace, root, "trtllm_comm")
    operations = library.parent.parent
    (operations / "-rf").mkdir()
    (operations / "new\nline").mkdir()
    (operations / "file").write_text("")
    (operations / "empty").mkdir()
    library.with_name("build.ninja").write_text(
        "build /etc/passwd: cuda_compile ../../../../../../../../etc/shadow\n"
        "cflags = -isystem /etc -I$nothing\n"
    )
    assert names(scan(workspace, root, ALLREDUCE)) == ["trtllm_comm"]
    library.with_name(".ninja_deps").unlink()
    assert scan(workspace, root, ALLREDUCE) == Affected((), ())
    odd = flashinfer.affected([workspace], root, "../..", [ChangedFile(ALLREDUCE)])
    assert odd.entries == () and odd.problems


def test_workspaces_come_from_the_serving_environment_and_further_homes(tmp_path: Path) -> None:
    for name in ("base", "home", "second"):
        (tmp_path / name / ".cache" / "flashinfer").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "second")
    environ = {"HOME": str(tmp_path / "home")}
    homes = [tmp_path / "second", tmp_path / "link", tmp_path / "none"]
    found = flashinfer.workspaces(environ, homes)
    assert [path.parent.parent.name for path in found] == ["home", "second"]
    environ["FLASHINFER_WORKSPACE_BASE"] = str(tmp_path / "base")
    assert flashinfer.workspaces(environ) == (tmp_path / "base" / ".cache" / "flashinfer",)
    assert flashinfer.workspaces({}) == ()


def test_the_directory_version_is_flashinfers_own(root: Path) -> None:
    assert flashinfer.cache_version(root, "0.6.3.dev1") == "0.6.3"
    meta = root / "flashinfer" / "_build_meta.py"
    meta.write_bytes(b"\xff")
    assert flashinfer.cache_version(root, "0.6.3.dev1") == "0.6.3.dev1"
    meta.unlink()
    assert flashinfer.cache_version(root, "0.6.3.dev1") == "0.0.0+unknown"


def test_a_key_depends_on_the_contents_a_module_sees(root: Path, workspace: Path) -> None:
    entry = Entry(workspace, "0.6.3", "120a", "trtllm_comm", root, (ALLREDUCE, COMM), "")
    assert build_key(entry, {}) == build_key(entry, {FUSION: "1"}) == PRISTINE
    keys = {
        build_key(entry, patched)
        for patched in (
            {ALLREDUCE: "1"},
            {ALLREDUCE: "2"},
            {COMM: "1"},
            {ALLREDUCE: "1", COMM: "1"},
        )
    }
    assert len(keys) == 4
    assert build_key(entry, {ALLREDUCE: "1", FUSION: "9"}) in keys


# --- traps --------------------------------------------------------------------------------------


def test_a_prebuilt_module_is_a_trap(root: Path, tmp_path: Path) -> None:
    site = tmp_path / "second-site"
    places = [
        root / "flashinfer/data/aot",
        site / "flashinfer_jit_cache/jit_cache",
        site / "flashinfer_jit_cache_cu13_sm120",
    ]
    for place in places:
        for module in ("trtllm_comm", "page"):
            (place / module).mkdir(parents=True)
            (place / module / f"{module}.so").write_bytes(b"")
    (site / "flashinfer_jit_cache-0.6.3.dist-info").mkdir()
    found = flashinfer.traps(root, [root, site], lambda: ["trtllm_comm"], {})
    assert len(found) == 3
    for place, text in zip(places, found, strict=True):
        assert str(place / "trtllm_comm" / "trtllm_comm.so") in text
    assert len(flashinfer.traps(root, [site], lambda: ["*"], {})) == 6
    assert flashinfer.traps(root, [tmp_path / "none"], lambda: ["vllm_comm"], {}) == []


def test_a_disabled_jit_is_a_trap(root: Path) -> None:
    (found,) = flashinfer.traps(root, [], lambda: ["trtllm_comm"], {"FLASHINFER_DISABLE_JIT": "1"})
    assert "FLASHINFER_DISABLE_JIT=1" in found
    assert flashinfer.traps(root, [], lambda: ["trtllm_comm"], {"FLASHINFER_DISABLE_JIT": ""}) == []


def test_a_workspace_that_cannot_be_read_is_a_problem(root: Path, workspace: Path) -> None:
    workspace.rmdir()
    workspace.parent.rmdir()
    workspace.parent.symlink_to(workspace.parent)
    assert "cannot read" in scan(workspace, root, ALLREDUCE).problems[0]
