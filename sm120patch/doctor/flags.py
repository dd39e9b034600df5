"""Options and variables that are set but have no effect, wherever they are set. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sm120patch.catalogue import Catalogue
from sm120patch.host.machine import Host
from sm120patch.model import State
from sm120patch.state import SetStatus
from sm120patch.variants import advice_for, launch_for

_OURS = re.compile(r"(?:SGLANG|SGL|FLASHINFER)_[A-Z0-9_]+")
_OFF = {"", "0", "false", "no", "off"}
_OVERLAY = "SGLANG_MOE_CONFIG_DIR"
_LIVE = (State.APPLIED, State.STAGED, State.UPSTREAM)


@dataclass(frozen=True)
class Setting:
    """One place where a server gets options and variables from."""

    place: str
    """`environment`, `profile FILE` or `server PID`."""
    args: tuple[str, ...]
    env: Mapping[str, str]
    readable: bool = True
    """False for a server whose variables may not be read: nothing is concluded from them."""


@dataclass(frozen=True)
class IdleFlag:
    """One option or variable that does not do what whoever set it expects."""

    name: str
    value: str
    place: str
    reason: str
    hint: str | None = None


@dataclass(frozen=True)
class Known:
    """What the flags are held against."""

    catalogue: Catalogue
    statuses: Mapping[str, SetStatus]
    versions: Mapping[str, str]
    host: Host
    mentioned: frozenset[str] | None
    """Variables that the installed packages name anywhere; None when nobody looked."""
    overlays: Mapping[str, Mapping[str, object]]
    """Directory of tuned files -> what lies in it (see `host.probing.overlay`)."""
    triton: str | None = None
    """Installed version of Triton."""


def variables(settings: Sequence[Setting]) -> list[str]:
    """Names of SGLang's and FlashInfer's variables that are set anywhere."""
    return sorted({name for s in settings for name in s.env if _OURS.fullmatch(name)})


def overlay_dirs(settings: Sequence[Setting]) -> list[str]:
    """Directories that are named as the place of tuned fused-MoE files."""
    return sorted({s.env[_OVERLAY] for s in settings if s.env.get(_OVERLAY)})


def idle(settings: Sequence[Setting], known: Known) -> tuple[IdleFlag, ...]:
    """Every flag without effect, by place."""
    found: list[IdleFlag] = []
    for setting in settings:
        found += _unknown(setting, known)
        found += _advised(setting, known)
        found += _launch(setting, known)
        found += _overlay(setting, known)
    return (*found, *_not_passed_on(settings))


def _unknown(setting: Setting, known: Known) -> Iterator[IdleFlag]:
    """Variables that no file of the installed packages names: misspelt, or of other releases."""
    if known.mentioned is None:
        return
    names = {"SGLANG": "sglang", "SGL": "sglang", "FLASHINFER": "flashinfer-python"}
    for name, value in sorted(setting.env.items()):
        if not _OURS.fullmatch(name) or name in known.mentioned:
            continue
        target = names[name.partition("_")[0]]
        if target not in known.versions:
            continue
        reason = f"{target} {known.versions[target]} does not know it"
        yield IdleFlag(name, value, setting.place, reason, "misspelt, or of another release")


def _advised(setting: Setting, known: Known) -> Iterator[IdleFlag]:
    """Variables that the catalogue advises, on versions or hosts where they do nothing."""
    for name in known.catalogue.ids:
        patch_set = known.catalogue.get(name)
        wanted = dict.fromkeys(n for a in patch_set.advice for n in a.env)
        for variable in wanted:
            value = setting.env.get(variable, "")
            if value.lower() in _OFF:
                continue
            if known.mentioned is not None and variable not in known.mentioned:
                continue  # said already
            advice, reason = advice_for(patch_set, known.versions)
            if advice is None:
                yield IdleFlag(variable, value, setting.place, reason, f"`sm120patch show {name}`")
            elif 0 < len(known.host.gpus) < patch_set.min_gpus:
                few = f"it is about {patch_set.min_gpus} GPUs or more, found {len(known.host.gpus)}"
                yield IdleFlag(variable, value, setting.place, few)


def _launch(setting: Setting, known: Known) -> Iterator[IdleFlag]:
    """Options that do nothing on these GPUs without a set that is not on disk."""
    said: set[tuple[str, ...]] = set()
    # A bundle first: its members alone do not do it.
    order = sorted(known.catalogue.ids, key=lambda n: -len(known.catalogue.get(n).depends))
    for name in order:
        patch_set, status = known.catalogue.get(name), known.statuses.get(name)
        launch = launch_for(patch_set, known.versions)
        if status is None or not launch.args or launch.args in said:
            continue
        if not _contains(setting.args, launch.args):
            continue
        said.add(launch.args)
        if status.state in _LIVE or not _is_for(patch_set.compute_capability, known.host):
            continue
        option, _, value = " ".join(launch.args).partition(" ")
        said_why = f" ({status.reason})" if status.reason else ""
        reason = f"does nothing on these GPUs without {name}, which is {status.label}{said_why}"
        yield IdleFlag(option, value, setting.place, reason, f"`sm120patch plan {name}`")


def _is_for(wanted: Sequence[str], host: Host) -> bool:
    """GPUs that a set is not for have their own, unpatched way."""
    return not wanted or bool(set(wanted) & set(host.compute_capabilities))


def _contains(args: Sequence[str], group: Sequence[str]) -> bool:
    words = [part for word in args for part in (word.split("=", 1) if word[:2] == "--" else [word])]
    width = len(group)
    return any(words[i : i + width] == list(group) for i in range(len(words) - width + 1))


def _overlay(setting: Setting, known: Known) -> Iterator[IdleFlag]:
    """A directory of tuned fused-MoE files in which the server finds nothing for its GPUs."""
    value = setting.env.get(_OVERLAY)
    found = known.overlays.get(value) if value else None
    if value is None or found is None:
        return
    reason = _overlay_fault(found, known)
    if reason is not None:
        hint = "the log would say `Using default MoE kernel config`; see `show moe-config-dir`"
        yield IdleFlag(_OVERLAY, value, setting.place, reason, hint)


def _overlay_fault(found: Mapping[str, object], known: Known) -> str | None:
    configs = found.get("configs")
    if not found.get("exists"):
        return "there is no such directory"
    if not isinstance(configs, Mapping) or not configs:
        return "it has no configs/triton_<version>/"
    if known.triton is not None:
        folder = "triton_" + known.triton.partition("+")[0].replace(".", "_")
        if folder not in configs:
            return f"it has no configs/{folder}/ for Triton {known.triton}: {', '.join(configs)}"
    names = {gpu.name.replace(" ", "_") for gpu in known.host.gpus}
    files = [str(file) for listed in configs.values() for file in listed]
    if names and not any(
        f"device_name={name}" in _fields(file) for name in names for file in files
    ):
        return f"no file in it is for device_name={min(names)}"
    return None


def _fields(file: str) -> list[str]:
    return file.removesuffix(".json").split(",")


def _not_passed_on(settings: Sequence[Setting]) -> Iterator[IdleFlag]:
    """Variables of the shell or the profile that a running server was started without."""
    servers = [s for s in settings if s.place.startswith("server ") and s.readable]
    for setting in settings:
        if setting.place.startswith("server "):
            continue
        for name, value in sorted(setting.env.items()):
            without = [s.place for s in servers if name not in s.env]
            if _OURS.fullmatch(name) and without:
                reason = f"{', '.join(without)} was started without it"
                yield IdleFlag(name, value, setting.place, reason, "restart the server with it")
