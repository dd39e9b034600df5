"""`doctor`: can the sets work on this host, and what that is set has no effect. Reads only.

Reads NVML, sysfs, /proc, the environment and the profile; writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sm120patch.caches import flashinfer
from sm120patch.catalogue import Catalogue, choose
from sm120patch.doctor import checks as judging
from sm120patch.doctor import flags, peers, topology
from sm120patch.doctor.checks import Check, Status
from sm120patch.doctor.flags import IdleFlag, Setting
from sm120patch.doctor.gathering import Source, gather
from sm120patch.doctor.outlook import SetOutlook, judge
from sm120patch.doctor.readings import Readings
from sm120patch.host.toolkit import ArchRules, arch_rules
from sm120patch.known import tp_of
from sm120patch.model import Changed, Variant
from sm120patch.operations import inspecting
from sm120patch.operations.site import Site
from sm120patch.variants import edit
from sm120patch.verify import profile as profiles


@dataclass(frozen=True)
class Diagnosis:
    """Answer of `doctor`."""

    readings: Readings
    versions: Mapping[str, str]
    prefix: str | None
    without: str | None
    """Why there is no environment to judge."""
    checks: tuple[Check, ...]
    sets: tuple[SetOutlook, ...]
    flags: tuple[IdleFlag, ...]

    @property
    def clean(self) -> bool:
        """No problem, and no flag without effect. What is unknown shows, but is not counted."""
        return not self.flags and all(c.status is not Status.PROBLEM for c in self.checks)


@dataclass(frozen=True)
class Question:
    """What `doctor` is asked."""

    site: Site | None
    without: str | None = None
    capability: str | None = None
    """Named by the user, in place of the GPUs of this host."""
    profile: Path | None = None


def diagnose(question: Question, source: Source, environ: Mapping[str, str]) -> Diagnosis:
    """Look at host, tools, environment and flags, and judge every set of the catalogue."""
    site = question.site
    profile = _profile(question, environ)
    serving = {**environ, **(profile.env if profile is not None else {})}
    readings = gather(source, serving, _places(serving, site))
    settings = [Setting("environment", (), environ)]
    settings += [profile] if profile is not None else []
    settings += _servers(readings, site)
    rules = _rules(site)
    checks = [
        *judging.gpus(readings, question.capability),
        *judging.toolkit(readings, rules),
        *judging.architectures(readings, rules),
        *judging.resources(readings),
        *peers.checks(readings, topology.read(readings)),
        _server_check(readings, site),
    ]
    sets: tuple[SetOutlook, ...] = ()
    idle: tuple[IdleFlag, ...] = ()
    if site is not None:
        known = _known(question, site, readings, settings, source)
        idle = flags.idle(settings, known)
        sets = judge(
            site.catalogue,
            tuple(known.statuses.values()),
            readings.host,
            question.capability,
            site.versions,
            checks,
            _traps(site, serving),
            _tp(settings),
        )
    return Diagnosis(
        readings=readings,
        versions=site.versions if site is not None else {},
        prefix=str(site.environment.prefix) if site is not None else None,
        without=question.without,
        checks=tuple(checks),
        sets=sets,
        flags=idle,
    )


def _profile(question: Question, environ: Mapping[str, str]) -> Setting | None:
    path = question.profile
    if path is None:
        return None
    prefix = str(question.site.environment.prefix) if question.site is not None else "/"
    python = str(question.site.environment.python) if question.site is not None else "python3"
    read = profiles.load(path, python=python, prefix=prefix)
    return Setting(f"profile {path}", read.server.command, read.server.variables)


def _tp(settings: list[Setting]) -> int | None:
    """Largest tensor parallel size that a profile or a running server names."""
    return max(filter(None, (tp_of(setting.args) for setting in settings)), default=None)


def _places(environ: Mapping[str, str], site: Site | None) -> dict[str, str]:
    base = environ.get("FLASHINFER_WORKSPACE_BASE") or environ.get("HOME") or "/"
    places = {"builds": str(Path(base) / ".cache" / "flashinfer")}
    if site is not None:
        places["ledger"] = str(site.environment.prefix)
    return places


def _servers(readings: Readings, site: Site | None) -> list[Setting]:
    """What servers of this environment were started with; another's packages know other flags."""
    return [
        Setting(
            place=f"server {server['pid']}",
            args=tuple(server["cmdline"]),
            env=server["environ"],
            readable=bool(server["environ"]),
        )
        for server in readings.servers.get("servers") or ()
        if not _is_of_another(server, site)
    ]


def _is_of_another(server: Mapping[str, Any], site: Site | None) -> bool:
    """Tell whether a server runs with another environment, or in a container of its own."""
    if site is None:
        return False
    found = site.environment
    bins = {os.path.realpath(place) for place in (found.prefix / "bin", found.python.parent)}
    started = {os.path.realpath(Path(p).parent) for p in server.get("programs") or ()}
    here = server.get("cwd") or "/"
    path = server["environ"].get("PYTHONPATH", "").split(":")
    searched = {os.path.realpath(f"{here}/{p}" if p[:1] != "/" else p) for p in path if p}
    roots = {os.path.realpath(i.root) for i in found.installations.values()}
    ours = not started or started & bins or searched & roots
    return bool(server.get("contained")) or not ours


def _server_check(readings: Readings, site: Site | None) -> Check:
    if readings.servers.value is None:
        return Check("servers", Status.UNKNOWN, f"running servers: {readings.servers.reason}")
    found = readings.servers.get("servers")
    silent = [s["pid"] for s in found if not s["environ"]]
    listed = ", ".join(
        f"{s['pid']} (port {s['port']}"
        + (", of another environment)" if _is_of_another(s, site) else ")")
        for s in found
    )
    facts = {"pids": [s["pid"] for s in found]}
    if silent:
        text = f"SGLang runs as {listed}; the variables of {', '.join(map(str, silent))} are hidden"
        return Check("servers", Status.UNKNOWN, text, "run doctor as root or as its user", facts)
    text = f"SGLang runs as {listed}" if found else "no SGLang server runs here"
    return Check("servers", Status.INFO, text, None, facts)


def _rules(site: Site | None) -> ArchRules | None:
    installation = site.environment.installations.get("flashinfer-python") if site else None
    if installation is None:
        return None
    try:
        path = installation.root / "flashinfer" / "compilation_context.py"
        return arch_rules(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def _known(
    question: Question, site: Site, readings: Readings, settings: list[Setting], source: Source
) -> flags.Known:
    found = readings.host.compute_capabilities
    capability = question.capability or (found[0] if len(found) == 1 else None)
    statuses = inspecting.status(site, capability).sets
    directories = flags.overlay_dirs(settings)
    mentions = _mention_questions(site, flags.variables(settings))
    answers = source.ask([*mentions, *(("overlay", path) for path in directories)])
    read = [answers[q] for q in mentions]
    mentioned = None
    if all(answer.value is not None for answer in read):
        mentioned = frozenset(name for answer in read for name in answer.get("found"))
    overlays = {path: answers[("overlay", path)].value for path in directories}
    return flags.Known(
        catalogue=site.catalogue,
        statuses={status.id: status for status in statuses},
        versions=site.versions,
        host=readings.host,
        mentioned=mentioned,
        overlays={path: value for path, value in overlays.items() if value is not None},
        triton=_triton(site),
    )


def _mention_questions(site: Site, names: list[str]) -> list[tuple[str, ...]]:
    if not names:
        return []
    packages = site.environment.installations.values()
    return [("mentions", str(i.root / i.package), *names) for i in packages]


def _triton(site: Site) -> str | None:
    for directory in site.environment.path:
        for metadata in sorted(directory.glob("triton-*.dist-info")):
            return metadata.name.removesuffix(".dist-info").partition("-")[2]
    return None


def _traps(site: Site, environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Set -> prebuilt modules that would be loaded instead of its patched FlashInfer sources."""
    installation = site.environment.installations.get("flashinfer-python")
    if installation is None:
        return {}
    path, root = site.environment.path, installation.root
    quiet = {k: v for k, v in environ.items() if k != "FLASHINFER_DISABLE_JIT"}
    if not flashinfer.traps(root, path, lambda: ["*"], quiet):
        return {}  # the usual case; what follows reads every source
    found: dict[str, list[str]] = {}
    for name in site.catalogue.ids:
        changed = _flashinfer_files(site.catalogue, name, site.versions, root)
        modules = flashinfer.expected_modules(root, changed) if changed else ()
        if trap := flashinfer.traps(root, path, partial(tuple, modules), quiet):
            found[name] = trap
    return found


def _flashinfer_files(
    catalogue: Catalogue, name: str, versions: Mapping[str, str], root: Path
) -> list[flashinfer.ChangedFile]:
    members = [catalogue.get(member) for member in catalogue.closure([name])]
    found = []
    for change in (c for m in members for c in m.changes if c.target == "flashinfer-python"):
        choice, _reason = choose(change, versions)
        if isinstance(choice, Variant) and not change.optional:
            found.append(flashinfer.ChangedFile(choice.path, _contents(root, choice)))
    return found


def _contents(root: Path, variant: Variant) -> tuple[bytes, ...]:
    """The file as it is and as it would be; empty, which means the worst, when not known."""
    try:
        data = (root / variant.path).read_bytes()
    except OSError:
        return ()
    result = edit(variant, data)
    return (data, result.data) if isinstance(result, Changed) else ()
