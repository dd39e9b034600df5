"""`--compile` with the real nvcc and ninja on a small module: what it proves, how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm120patch.caches import freshness
from sm120patch.compiling import compiler
from sm120patch.errors import HostError
from sm120patch.ledger import read_ledger
from sm120patch.operations import compiling
from tests.support import jit
from tests.support.command import CHECKOUT, run, run_after
from tests.support.compileplace import (
    GATE,
    LIFT,
    SOURCES,
    CompilePlace,
    cuda_home,
    write_catalogue,
)
from tests.support.environments import install_fake
from tests.support.place import refused
from tests.support.serving import GOOD, QUICK, Host
from tests.support.simulated import JIT_CLOSED

APPLY = ("apply", "lift", "--no-verify")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompilePlace:
    monkeypatch.setenv("CUDA_HOME", cuda_home())
    monkeypatch.setenv("MAX_JOBS", "2")
    return CompilePlace(tmp_path)


def header(place: CompilePlace) -> str:
    return (place.site / GATE).read_text()


def test_an_apply_compiles_ahead_and_proves_the_change_from_ptx(place: CompilePlace) -> None:
    found = place.compile(*APPLY)
    assert found["module"] == "gated_comm" and found["arch"] == "120a"
    gated, hopper = found["ptx"]
    assert (gated["before"], gated["after"], gated["same"]) == (0, 1, False)
    assert (hopper["before"], hopper["after"], hopper["same"]) == (1, 1, True)
    assert found["ahead_of_server"] is True and found["path"] == str(place.module)
    assert freshness.work_to_do(place.module, jit.ninja()) == ()
    (event,) = place.done("history")["events"]
    assert event["kind"] == "staged" and event["data"]["compiled"] == [found]
    assert place.done("status")["sets"][-1]["counts"] is False, "compiled is not verified"


def test_what_is_compiled_begins_after_the_time_of_its_headers(place: CompilePlace) -> None:
    """One of this second carries the next, and what ninja starts before that it will do again."""
    place.apply("lift")
    file = place.site / GATE
    soon = time.time() + 0.4
    os.utime(file, (soon, soon))
    with read_ledger(place.prefix / ".sm120patch" / "ledger.sqlite3") as ledger:
        assert ledger is not None
        compiling._let_pass(ledger.history())
    assert time.time() >= soon


@pytest.mark.slow
def test_once_compiled_a_revert_and_a_second_apply_compile_nothing(place: CompilePlace) -> None:
    place.compile(*APPLY)
    library = place.module / "gated_comm.so"
    patched = library.read_bytes()
    place.done("revert", "lift")
    assert not library.exists()
    place.apply("lift")
    assert library.read_bytes() == patched
    assert freshness.work_to_do(place.module, jit.ninja()) == ()


@pytest.mark.slow
def test_a_header_changes_only_the_objects_that_include_it(place: CompilePlace) -> None:
    environ = {**os.environ, "FLASHINFER_CUDA_ARCH_LIST": "12.0a", "HOME": str(place.home)}
    environ["PATH"] = f"{place.prefix / 'bin'}{os.pathsep}{environ['PATH']}"
    stub = compiler.driver_stub(place.home / "stub")
    code = "import flashinfer.jit.comm as c; c.gen_gated_module().build(True)"
    command = [str(place.prefix / "bin" / "python"), "-c", code]
    subprocess.run(command, env={**environ, "LIBRARY_PATH": str(stub)}, check=True)
    kept = (place.module / "plain.cuda.o").stat()
    upstream = (place.module / "gated_comm.so").read_bytes()
    place.compile(*APPLY)
    now = (place.module / "plain.cuda.o").stat()
    assert now.st_mtime_ns == kept.st_mtime_ns, "this object was not compiled again"
    assert (place.module / "gated_comm.so").read_bytes() != upstream
    place.done("revert", "lift")
    assert (place.module / "gated_comm.so").read_bytes() == upstream
    assert freshness.work_to_do(place.module, jit.ninja()) == ()


@pytest.mark.slow
def test_verify_compile_looks_at_what_is_on_disk_and_changes_no_state(place: CompilePlace) -> None:
    refused(place.run("verify", "lift", "--compile", "--gpu", "12.0"), 2, "not on disk")
    place.apply("lift")
    result = place.done("verify", "lift", "--compile", "--gpu", "12.0")
    assert result["outcome"] == "compiled"
    assert [p["after"] for p in result["compiled"][0]["ptx"]] == [1, 1]
    (state,) = (s for s in place.done("status")["sets"] if s["id"] == "lift")
    assert (state["state"], state["counts"]) == ("staged", False)
    assert [e["kind"] for e in place.done("history")["events"]] == ["compiled", "staged"]


def test_sources_that_do_not_compile_are_put_back(place: CompilePlace) -> None:
    ran = place.run("apply", "broken", "--no-verify", "--compile", "--gpu", "12.0")
    error = refused(ran, 8, "gated_comm does not compile", "not like this")
    assert error["code"] == "does-not-compile"
    assert header(place) == SOURCES[GATE]
    assert place.done("history")["events"] == []
    assert place.run("recover").result["outcome"] == "nothing"


@pytest.mark.slow
def test_code_that_is_not_what_the_set_promises_is_put_back(place: CompilePlace) -> None:
    ran = place.run("apply", "boast", "--no-verify", "--compile", "--gpu", "12.0")
    error = refused(ran, 8, "griddepcontrol.wait 0 -> 1, expected 0 -> 918")
    assert error["code"] == "not-in-the-code"
    assert header(place) == SOURCES[GATE]


@pytest.mark.slow
def test_an_architecture_list_that_leaves_the_gpu_out_is_told(place: CompilePlace) -> None:
    words = (*APPLY, "--compile", "--gpu", "12.0")
    ran = place.run(*words, FLASHINFER_CUDA_ARCH_LIST="9.0a")
    refused(ran, 10, "compiled for 90a, which leaves 12.0 out")
    assert header(place) == SOURCES[GATE]


def test_a_prebuilt_module_is_refused_before_anything_is_written(place: CompilePlace) -> None:
    aot = place.site / "flashinfer/data/aot/gated_comm/gated_comm.so"
    aot.parent.mkdir(parents=True)
    aot.write_bytes(b"")
    refused(place.run(*APPLY, "--compile", "--gpu", "12.0"), 5, "prebuilt module")
    assert header(place) == SOURCES[GATE]


def test_a_set_without_compiled_code_says_so(place: CompilePlace, tmp_path: Path) -> None:
    manifest = place.catalogue / "manifests" / "lift.toml"
    manifest.write_text(manifest.read_text().partition("[[compile]]")[0])
    result = place.done(*APPLY, "--compile", "--gpu", "12.0", CUDA_HOME=str(tmp_path))
    assert result["outcome"] == "staged" and result["compiled"] == []
    options = [word for word in place.options if word not in ("--output", "json")]
    told = run("verify", "lift", "--compile", *options, HOME=str(place.home)).out
    assert "nothing to compile" in told


# --- slow compilers, none, interrupted ones -------------------------------------------------------


def slow_nvcc(place: CompilePlace, tmp_path: Path) -> str:
    """A CUDA home whose nvcc never comes back from a compile."""
    home = tmp_path / "slow-cuda"
    (home / "bin").mkdir(parents=True)
    for name in ("include", "lib64", "nvvm"):
        (home / name).symlink_to(Path(os.environ["CUDA_HOME"], name))
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text(
        f"#!/bin/sh\ncase $1 in --version) exec {os.environ['CUDA_HOME']}/bin/nvcc --version;;"
        f" esac\necho $$ > {tmp_path / 'nvcc.pid'}\nexec sleep 600\n"
    )
    nvcc.chmod(0o755)
    return str(home)


def gone(pid_file: Path) -> bool:
    """No process of that number is left but a zombie."""
    status = Path(f"/proc/{pid_file.read_text().strip()}/status")
    return not status.exists() or "\nState:\tZ" in status.read_text()


@pytest.mark.slow
def test_a_compile_that_takes_too_long_is_stopped_and_the_change_put_back(
    place: CompilePlace, tmp_path: Path
) -> None:
    words = (*APPLY, "--compile", "--compile-timeout", "3", "--gpu", "12.0")
    ran = place.run(*words, CUDA_HOME=slow_nvcc(place, tmp_path))
    error = refused(ran, 10, "did not end within 3 s", "--compile-timeout")
    assert error["code"] == "compile-timeout"
    assert gone(tmp_path / "nvcc.pid") and header(place) == SOURCES[GATE]
    place.apply("lift")


@pytest.mark.slow
def test_an_interrupted_compile_puts_the_change_back_and_leaves_no_compiler(
    place: CompilePlace, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "sm120patch", *APPLY, "--compile", "--gpu", "12.0"]
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT), "HOME": str(place.home)}
    environ["CUDA_HOME"] = slow_nvcc(place, tmp_path)
    with subprocess.Popen(
        [*words, *place.options], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "nvcc.pid").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert header(place) != SOURCES[GATE]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
    assert gone(tmp_path / "nvcc.pid") and header(place) == SOURCES[GATE]
    assert place.run("recover").result["outcome"] == "nothing"


@pytest.fixture
def serving(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A simulated server whose FlashInfer has the small kernels as well."""
    monkeypatch.setenv("CUDA_HOME", cuda_home())
    module = SOURCES["flashinfer/jit/comm.py"]
    sources = {path: text.encode() for path, text in SOURCES.items()}
    sources["flashinfer/jit/comm.py"] = (module + JIT_CLOSED).encode()
    install_fake(host.site, "flashinfer-python", "0.6.3", sources)
    (host.prefix / "bin" / "ninja").symlink_to(jit.ninja())
    write_catalogue(host.root / "more")
    shutil.rmtree(host.catalogue)
    shutil.copytree(host.root / "more", host.catalogue)
    return host


@pytest.mark.slow
def test_a_measured_apply_compiles_before_the_first_server_starts(serving: Host) -> None:
    profile = serving.profile(GOOD, verify=QUICK)
    ran = serving.run("apply", "lift", "--profile", profile, "--compile", "--allow-running")
    assert ran.code == 0, ran.out + ran.err
    assert ran.result["outcome"] == "applied"
    assert [p["after"] for p in ran.result["compiled"][0]["ptx"]] == [1, 1]
    said = ran.err.splitlines()
    compiled = next(n for n, line in enumerate(said) if "griddepcontrol.wait 0 -> 1" in line)
    started = next(n for n, line in enumerate(said) if "starting the server" in line)
    assert compiled < started
    assert freshness.work_to_do(Path(ran.result["compiled"][0]["path"]), jit.ninja()) == ()


@pytest.mark.slow
def test_what_does_not_compile_is_never_served(serving: Host) -> None:
    profile = serving.profile(GOOD, verify=QUICK)
    ran = serving.run("apply", "broken", "--profile", profile, "--compile", "--allow-running")
    assert ran.code == 8 and ran.error["code"] == "does-not-compile"
    assert "starting the server" not in ran.err
    assert (serving.site / GATE).read_text() == SOURCES[GATE]
    assert serving.states()["broken"] == "absent" and serving.litter() == []


def test_no_compiler_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "DEFAULT", tmp_path / "none")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(HostError) as raised:
        compiler.find_compiler({"CUDA_HOME": str(tmp_path)}, [tmp_path], tmp_path)
    assert raised.value.code == "no-compiler" and str(tmp_path) in raised.value.message
    assert "sm120patch[nvcc]" in (raised.value.hint or "")


def test_a_lone_wrapper_of_nvcc_on_the_path_is_no_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlashInfer would take /usr/local for the toolkit and fail at the link, an hour later."""
    home = cuda_home()
    wrapper = tmp_path / "local" / "bin" / "nvcc"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(f'#!/bin/sh\nexec {home}/bin/nvcc "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(compiler, "DEFAULT", Path(home))
    environ = {"PATH": str(wrapper.parent)}
    found = compiler.find_compiler(environ, [], tmp_path)
    assert (found.home, found.origin) == (Path(home), "named")
    assert found.environment(environ, tmp_path)["CUDA_HOME"] == home
    found = compiler.find_compiler({"CUDA_HOME": home}, [], tmp_path)
    assert found.origin == "server"
    assert "CUDA_HOME" not in found.environment({}, tmp_path)


@pytest.mark.slow
@pytest.mark.network
def test_the_compiler_of_the_extra_builds_links_and_proves(
    place: CompilePlace, tmp_path: Path
) -> None:
    """PyPI's wheels lack three things that a link needs; a server would not have this compiler."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    wheels = project["optional-dependencies"]["nvcc"]
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target"]
    environ = {**os.environ, "HOME": os.environ["SM120PATCH_TEST_REAL_HOME"]}
    subprocess.run([*pip, str(place.site), *wheels], env=environ, check=True)
    before = sorted((place.site / "nvidia").rglob("*"))
    hide = "from pathlib import Path\nfrom sm120patch.compiling import compiler\n"
    hide += f"compiler.DEFAULT = Path({str(tmp_path / 'none')!r})"
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("cc", "c++", "gcc", "g++", "sh", "as", "ld"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    ran = run_after(
        hide,
        *APPLY,
        "--compile",
        "--gpu",
        "12.0",
        *place.options,
        HOME=str(place.home),
        PATH=str(tools),
        CUDA_HOME="",
    )
    assert ran.code == 0, ran.out + ran.err
    (found,) = ran.result["compiled"]
    assert (found["compiler"], found["compiler_origin"]) == ("nvcc 13.0", "wheels")
    assert [p["after"] for p in found["ptx"]] == [1, 1]
    assert found["ahead_of_server"] is False and found["path"] is None
    assert not place.module.exists(), "the server's cache is left alone"
    assert sorted((place.site / "nvidia").rglob("*")) == before, "the wheels are left alone"


def test_the_stand_in_for_the_driver_links(tmp_path: Path) -> None:
    stub = compiler.driver_stub(tmp_path)
    assert stub is not None
    (tmp_path / "m.c").write_text("int f(void) { return 1; }\n")
    command = ["cc", "-shared", "-fPIC", "m.c", "-lcuda", "-o", "m.so"]
    environ = {**os.environ, "LIBRARY_PATH": str(stub)}
    subprocess.run(command, cwd=tmp_path, env=environ, check=True)
    assert LIFT[0] in SOURCES[GATE]
