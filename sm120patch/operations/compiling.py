"""`--compile`: build what a set changes ahead of the server, and prove that the change is in it.

FlashInfer's own cache is written, by FlashInfer itself; everything else goes to a scratch directory
that is removed. Without a GPU this is the strongest check there is.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sm120patch import versions
from sm120patch.caches import freshness
from sm120patch.compiling.compiler import Compiler, find_compiler
from sm120patch.compiling.module import ARCH_LIST, Built, arch_list, build, up_to_date
from sm120patch.compiling.proof import Proof, prove
from sm120patch.compiling.running import Limit, Owner, Say
from sm120patch.errors import HostError, NotVerifiedError
from sm120patch.model import ABSENT, CompileCheck, PtxCount
from sm120patch.operations import gpus
from sm120patch.operations.site import Site
from sm120patch.plan import History
from sm120patch.verify.commandline import ArmCommand
from sm120patch.verify.profile import Profile
from sm120patch.verify.spawn import server_environment, server_identity

TARGET = "flashinfer-python"
DEFAULT_TIMEOUT = 1800.0
"""Seconds: the slowest module took 524 s on two busy cores."""


@dataclass(frozen=True)
class Duty:
    """A module to compile, and what must be seen in it."""

    set_id: str
    check: CompileCheck
    ptx: tuple[PtxCount, ...]
    """Those whose change is on disk."""


@dataclass(frozen=True)
class Compiled:
    """A module that passed."""

    duty: Duty
    built: Built
    compiler: Compiler
    ahead: bool
    """It is in the cache of the server and ninja has nothing left to do there."""
    proofs: tuple[Proof, ...]


@dataclass(frozen=True)
class Settings:
    """How to compile."""

    capability: str
    """Of the GPU that the server will have, such as 12.0."""
    timeout: float = DEFAULT_TIMEOUT
    environ: Mapping[str, str] | None = None
    """Variables of the server; None means ours."""
    owner: Owner = field(default_factory=Owner)
    cwd: str | None = None
    own_path: bool = False
    """The profile names PATH, so it is taken as it is."""


def settings_for(
    capability: str | None, timeout: float, profile: Profile | None, command: ArmCommand | None
) -> Settings:
    """Take user, home and variables from the profile, as the server will have them."""
    wanted = capability or "12.0"
    if profile is None or command is None:
        return Settings(wanted, timeout)
    identity = server_identity(profile.server)
    return Settings(
        wanted,
        timeout,
        server_environment(command, profile.server),
        Owner(identity.user, identity.group, identity.extra_groups),
        profile.server.cwd,
        "PATH" in profile.server.env,
    )


def duties(site: Site, history: History) -> tuple[Duty, ...]:
    """What the sets on disk, by that history, want to have compiled."""
    installation = site.environment.installations.get(TARGET)
    version = versions.installed(installation.version) if installation else None
    labels = {label for f in history.files.values() if f.target == TARGET for label in f.changes}
    found = []
    if version is None:
        return ()
    for name in history.active:
        touched = any(label.startswith(f"{name}/") for label in labels)
        known = touched and name in site.catalogue.ids
        for check in site.catalogue.get(name).compile if known else ():
            if version in versions.parse(check.versions):
                shown = tuple(c for c in check.ptx if f"{name}/{c.change}" in labels)
                found.append(Duty(name, check, shown))
    return tuple(found)


def prepare(site: Site, wanted: tuple[Duty, ...], settings: Settings) -> None:
    """Refuse before anything is written what could only fail later."""
    environ = os.environ if settings.environ is None else settings.environ
    with tempfile.TemporaryDirectory(prefix="sm120patch-compile-") as scratch:
        if wanted:
            find_compiler(environ, site.environment.site, Path(scratch))
            _ninja(site, environ)
            _environ_for(site, environ, settings)


def compile_all(
    site: Site, wanted: tuple[Duty, ...], history: History, settings: Settings, say: Say
) -> tuple[Compiled, ...]:
    """Compile and prove every duty; `history` describes what is on disk now.

    Raises NotVerifiedError when something does not compile or the patched code is not in it.
    """
    if not wanted:
        return ()
    limit = Limit.of(settings.timeout)
    given = os.environ if settings.environ is None else settings.environ
    with _scratch(settings.owner) as scratch:
        compiler = find_compiler(given, site.environment.site, scratch)
        environ = compiler.environment(_environ_for(site, given, settings), scratch)
        if compiler.origin == "wheels":
            # A server would not have this compiler: its own build file would differ.
            environ["FLASHINFER_WORKSPACE_BASE"] = str(scratch / "workspace")
        say(f"compiling with nvcc {compiler.version} of {compiler.home}")
        return tuple(
            _compile(site, duty, history, settings, environ, compiler, scratch, limit, say)
            for duty in wanted
        )


def _compile(
    site: Site,
    duty: Duty,
    history: History,
    settings: Settings,
    environ: Mapping[str, str],
    compiler: Compiler,
    scratch: Path,
    limit: Limit,
    say: Say,
) -> Compiled:
    say(f"      {duty.check.module} for sm_{settings.capability.replace('.', '')}")
    python, root = site.environment.python, site.environment.installations[TARGET].root
    cwd = Path(settings.cwd) if settings.cwd else scratch
    generator = duty.check.generator
    _let_pass(history)
    built = build(python, generator, environ, cwd, settings.owner, limit, say)
    _require_arch(built, settings.capability, environ)
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        proofs = prove(
            duty.ptx,
            built.directory,
            _ninja(site, environ),
            root,
            _upstream(site, history),
            environ,
            Path(place),
            limit,
            say,
        )
    for proof in proofs:
        say(f"      {proof}")
    wrong = [str(proof) for proof in proofs if not proof.holds]
    if wrong:
        raise NotVerifiedError(
            f"{duty.check.module} was compiled, but it is not what {duty.set_id} promises:\n"
            + "\n".join(f"  - {text}" for text in wrong),
            code="not-in-the-code",
            hint=f"counts are declared for nvcc 13.0, found {compiler.version}; please report it",
            details={"proofs": wrong},
        )
    ahead = compiler.origin != "wheels" and up_to_date(built, site.environment.prefix, environ)
    return Compiled(duty, built, compiler, ahead, proofs)


def _environ_for(site: Site, environ: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """The server's variables, and the architecture where there is no such GPU to ask."""
    found = dict(environ)
    if not settings.own_path:
        # As in an activated environment: ninjas of different versions build everything anew.
        beside = str(site.environment.prefix / "bin")
        found["PATH"] = os.pathsep.join(filter(None, (beside, found.get("PATH", ""))))
    if ARCH_LIST not in found and not _has_gpu(settings.capability):
        root = site.environment.installations[TARGET].root
        found[ARCH_LIST] = arch_list(root, settings.capability)
    return found


def _let_pass(history: History) -> None:
    """Wait until the changed files are of the past: what is built before that is out of date.

    A file that was patched in the second of its installation carries the next whole second.
    """
    times = [0.0]
    for (target, path), file in history.files.items():
        if target == TARGET:
            with contextlib.suppress(OSError):
                times.append(Path(file.root, path).stat().st_mtime)
    time.sleep(min(1.0, max(0.0, max(times) - time.time())))


def _has_gpu(capability: str) -> bool:
    host = gpus.probe()
    return host is not None and set(host.compute_capabilities) == {capability}


def _require_arch(built: Built, capability: str, environ: Mapping[str, str]) -> None:
    if capability.replace(".", "") not in built.arch:
        raise HostError(
            f"{built.module} was compiled for {built.arch}, which leaves {capability} out",
            code="wrong-architecture",
            hint=f"{ARCH_LIST} is {environ.get(ARCH_LIST, 'not set')}: leave it unset,"
            f" or name {capability} in it",
        )


def _ninja(site: Site, environ: Mapping[str, str]) -> str:
    for ninja in freshness.ninjas(site.environment.prefix, environ):
        return ninja
    raise HostError(
        "there is no ninja, which FlashInfer builds with",
        code="no-compiler",
        hint=f"install it: {site.environment.python} -m pip install ninja",
    )


def _upstream(site: Site, history: History) -> dict[str, bytes]:
    found = {}
    for (target, path), file in history.files.items():
        if target == TARGET and file.pristine_sha256 != ABSENT:
            data = site.store.get(file.pristine_sha256)
            if data is not None:
                found[path] = data
    return found


@contextlib.contextmanager
def _scratch(owner: Owner) -> Iterator[Path]:
    """Yield a directory that whoever compiles may enter."""
    with tempfile.TemporaryDirectory(prefix="sm120patch-compile-") as text:
        scratch = Path(text)
        if owner.user is not None:
            os.chown(scratch, owner.user, -1 if owner.group is None else owner.group)
        yield scratch


@dataclass
class Ahead:
    """Compiles what the sets on disk want to have compiled, once they are there."""

    site: Site
    settings: Settings
    say: Say
    compiled: tuple[Compiled, ...] = ()

    def prepare(self, history: History) -> None:
        """Refuse before the first write what could only fail later."""
        prepare(self.site, duties(self.site, history), self.settings)

    def __call__(self, history: History) -> list[dict[str, object]]:
        """Compile what `history`, which is on disk now, asks for; tell what, for the ledger."""
        wanted = duties(self.site, history)
        self.compiled = compile_all(self.site, wanted, history, self.settings, self.say)
        return [compiled_dict(c) for c in self.compiled]


def compiled_dict(compiled: Compiled) -> dict[str, object]:
    """One compiled module, for machines and the ledger."""
    built = compiled.built
    return {
        "set": compiled.duty.set_id,
        "module": built.module,
        "arch": built.arch,
        "path": str(built.directory) if compiled.ahead else None,
        "seconds": round(built.seconds, 1),
        "compiler": f"nvcc {compiled.compiler.version}",
        "compiler_origin": compiled.compiler.origin,
        "ahead_of_server": compiled.ahead,
        "ptx": [
            {
                "change": proof.expected.change,
                "source": proof.expected.source,
                "arch": proof.expected.arch,
                "text": proof.expected.text,
                "before": proof.before,
                "after": proof.after,
                "same": proof.same,
            }
            for proof in compiled.proofs
        ],
    }


def compiled_text(compiled: Compiled) -> str:
    """The same for people."""
    built = compiled.built
    head = f"{built.module} compiles for {built.arch}"
    lines = [f"{head}: {proof}" for proof in compiled.proofs] or [head]
    if compiled.ahead:
        lines.append(f"{built.module} is ready for the server in {built.directory}")
    elif compiled.compiler.origin == "wheels":
        lines.append(f"{built.module} was compiled in a scratch directory, for the proof alone")
    if compiled.compiler.origin == "named":
        lines.append(f"start the server with CUDA_HOME={compiled.compiler.home}")
    return "\n".join(lines)
