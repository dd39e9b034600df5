"""What a set means for the installed versions, and its payloads applied to bytes.

Pure, but that `edit` looks at the shipped fingerprints.
"""

from __future__ import annotations

from collections.abc import Mapping

from sm120patch import versions
from sm120patch.errors import CatalogueError
from sm120patch.model import (
    Advice,
    Change,
    Changed,
    EditResult,
    Engagement,
    LaunchOptions,
    PatchSet,
    PayloadKind,
    Refused,
    Unchanged,
    Variant,
    Window,
)
from sm120patch.plan import Launch

_CLOSED = ("not-applicable", "refused")
"""Outcomes of a window for which there is no change, and a reason why."""


def choose(change: Change, installed: Mapping[str, str]) -> tuple[Variant | Window | None, str]:
    """Return what the change means for the installed versions (distribution -> version), and why.

    A Variant is to be applied, a Window says that there is nothing to do, None that the change
    cannot or must not be made for this version, or knows nothing about it; the reason says which.
    """
    found = installed.get(change.target)
    if found is None:
        return None, f"{change.target} is not installed"
    if not versions.comparable(found):
        return None, f"{change.target} has the version {found!r}, which cannot be compared"
    candidates: list[Variant | Window] = [*change.variants, *change.windows]
    for candidate in candidates:
        if not versions.within(found, candidate.versions):
            continue
        if isinstance(candidate, Window):
            return (None if candidate.outcome in _CLOSED else candidate), candidate.reason
        unmet = _unmet(candidate.requires, installed)
        return (None, unmet) if unmet else (candidate, f"{change.target} {found}")
    ranges = " or ".join(v.versions for v in change.variants)
    return None, f"nothing is known about {change.target} {found}; it is for {ranges}"


def advice_for(patch_set: PatchSet, installed: Mapping[str, str]) -> tuple[Advice | None, str]:
    """Return the advice for the installed versions, and in words what it comes to.

    None when there is none for them; then the words say for which there is.
    """
    for advice in patch_set.advice:
        if _applies(advice, installed):
            unmet = _unmet(advice.requires, installed)
            return (None, unmet) if unmet else (advice, advice_text(advice))
    known = " or ".join(f"{a.target} {a.versions}" for a in patch_set.advice)
    targets = dict.fromkeys(a.target for a in patch_set.advice)
    found = " and ".join(f"{name} {installed[name]}" for name in targets if name in installed)
    return None, f"it is for {known}; found {found or 'none'}"


def advice_text(advice: Advice) -> str:
    """`no patch needed: set X=1: why`, or `refused: why`."""
    if advice.outcome == "refused":
        return f"refused: {advice.reason}"
    return f"{advice_hint(advice)}: {advice.reason}"


def advice_hint(advice: Advice) -> str:
    """`no patch needed: set X=1` and `start the server with --option`, whatever is advised."""
    variables = " ".join(f"{name}={value}" for name, value in sorted(advice.env.items()))
    parts = [f"set {variables}"] if variables else []
    parts += [f"start the server with {' '.join(advice.args)}"] if advice.args else []
    return f"no patch needed: {' and '.join(parts)}"


def launch_for(patch_set: PatchSet, installed: Mapping[str, str]) -> Launch:
    """Return what a patched server must be started with, and what the baseline must not have."""
    options = [o for o in patch_set.launch if _applies(o, installed)]
    return Launch(
        args=tuple(argument for o in options for argument in o.args),
        env={name: value for o in options for name, value in o.env.items()},
        strip={name: count for o in options for name, count in o.strip.items()},
        strip_env=tuple(dict.fromkeys(name for o in options for name in o.strip_env)),
    )


def engagement_for(patch_set: PatchSet, installed: Mapping[str, str]) -> tuple[Engagement, ...]:
    """Return how it is seen that the patched code runs; empty when there is no way to see it."""
    return tuple(e for e in patch_set.engagement if _applies(e, installed))


def _applies(item: LaunchOptions | Engagement | Advice, installed: Mapping[str, str]) -> bool:
    return versions.within(installed.get(item.target, ""), item.versions) is True


def _unmet(requires: Mapping[str, str], installed: Mapping[str, str]) -> str:
    """Say which companion distribution is missing or has another version; empty when none."""
    for name, wanted in requires.items():
        if not versions.within(installed.get(name, ""), wanted):
            return f"needs {name} {wanted}, found {installed.get(name, 'none')}"
    return ""


# --- running a variant -------------------------------------------------------------------------


def satisfied(variant: Variant, data: bytes) -> bool:
    """Tell whether `data` meets the post-conditions of the variant; imports no parser."""
    if variant.kind is PayloadKind.CODEMOD:
        from sm120patch import codemod

        return codemod.satisfied(variant.data, variant.payload, data)
    if variant.kind is PayloadKind.FILE:
        return data == variant.data
    return _unmet_condition(variant, data) is None


def edit(variant: Variant, data: bytes | None) -> EditResult:
    """Do what `run` does; content and payload that are known by fingerprint need no parser."""
    if variant.kind is PayloadKind.FILE or data is None:
        return run(variant, data)
    from sm120patch import fingerprints

    return fingerprints.edit(variant, data) or run(variant, data)


def run(variant: Variant, data: bytes | None) -> EditResult:
    """Apply the payload of a variant to the content of its file, None when there is no file.

    Content that meets the post-conditions is `Unchanged`, however it came to do so; a result
    that does not meet them is `Refused`. Raises CatalogueError when the payload itself is broken.
    """
    if variant.kind is PayloadKind.FILE:
        return _add(variant, data)
    if data is None:
        return Refused("there is no such file")
    if variant.kind is PayloadKind.CODEMOD:
        from sm120patch import codemod

        return codemod.run(variant.data, variant.payload, data)
    from sm120patch import unified

    if broken := unified.faults(variant.data):
        raise CatalogueError(
            f"the diff {variant.payload} cannot be used: {'; '.join(broken)}",
            hint="mend the payload; no environment was touched (see `sm120patch lint`)",
            details={"payload": variant.payload, "faults": broken},
        )
    if _unmet_condition(variant, data) is None:
        return Unchanged("the content already meets the post-conditions")
    result = unified.apply(variant.data, variant.path, data)
    after = result.data if isinstance(result, Changed) else data
    unmet = _unmet_condition(variant, after)
    if unmet and not isinstance(result, Refused):
        return Refused(f"after the diff {unmet}")
    return result


def _add(variant: Variant, data: bytes | None) -> EditResult:
    if data is None:
        return Changed(variant.data, 1)
    if data == variant.data:
        return Unchanged("the file is there with this content")
    return Refused("there is such a file already, with another content")


def _unmet_condition(variant: Variant, data: bytes) -> str | None:
    """Return the first post-condition of a diff that `data` does not meet."""
    for text, count in variant.present.items():
        if (found := data.count(text.encode())) != count:
            return f"{text!r} occurs {found} times, not {count}"
    for text in variant.absent:
        if found := data.count(text.encode()):
            return f"{text!r} still occurs {found} times"
    return None
