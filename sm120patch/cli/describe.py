"""Long text for `show`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from sm120patch.model import Advice, Answers, Change, PatchSet
from sm120patch.plaintext import clean
from sm120patch.plan import Launch
from sm120patch.render import launch_text
from sm120patch.variants import advice_text

WIDTH = 96
"""Columns of paragraphs at most; a terminal may have fewer."""
_ANSWERS = {
    Answers.BIT_EXACT: "must be equal bit for bit",
    Answers.TOLERANCE: "must be equal up to rounding",
    Answers.BEHAVIOUR_CHANGE: "may differ, but right ones must stay right",
}


def describe_set(patch_set: PatchSet, origin: str, width: int = WIDTH) -> str:
    """Return everything the catalogue knows about a set, for people; paragraphs have `width`."""
    policy = patch_set.verification
    lines = [
        f"{patch_set.id} (revision {patch_set.revision}): {patch_set.title}",
        "",
        *_wrap(patch_set.description, width),
        "",
        f"for compute capability  {', '.join(patch_set.compute_capability) or 'any'}",
        *([f"for the GPU             {', '.join(patch_set.devices)}"] if patch_set.devices else []),
        f"upstream                {patch_set.upstream_status} (checked {patch_set.last_checked})",
        *_wrap(patch_set.upstream_reason, width, " " * 24),
        f"comes from              {origin}",
    ]
    if not patch_set.only_advice:
        lines.append(f"must show               {policy.goal.value}, margin {policy.margin:.0%}")
        lines.append(f"answers                 {_ANSWERS[policy.answers]}")
    if patch_set.depends:
        lines.append(f"takes along             {', '.join(patch_set.depends)}")
    if patch_set.advice:
        lines += ["", "there is nothing to patch" if patch_set.only_advice else "without a patch"]
    for advice in patch_set.advice:
        lines += _advice(advice, width)
    for change in patch_set.changes:
        lines += ["", *_change(change, width)]
    lines += _launch(patch_set)
    if patch_set.known_results:
        lines += ["", "known results"]
    for known in patch_set.known_results:
        mark = "harmful: " if known.harmful else ""
        lines.append(f"  {known.topology}: {mark}{known.effect}  [{known.source}]")
    return clean("\n".join(lines))


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    columns = max(min(width, WIDTH), len(indent) + 20)
    return textwrap.wrap(
        " ".join(text.split()), columns, initial_indent=indent, subsequent_indent=indent
    )


def _change(change: Change, width: int) -> Iterator[str]:
    optional = f"  (optional, off unless --with {change.id})" if change.optional else ""
    yield f"change {change.id}: {change.summary}{optional}"
    yield from _wrap(change.description, width, "  ")
    for variant in change.variants:
        yield f"  {change.target} {variant.versions}: {variant.kind.value} of {variant.path}"
    for window in change.windows:
        yield f"  {change.target} {window.versions}: {window.outcome}: {window.reason}"


def _advice(advice: Advice, width: int) -> Iterator[str]:
    companions = "".join(f", {name} {wanted}" for name, wanted in advice.requires.items())
    yield f"  {advice.target} {advice.versions}{companions}:"
    yield from _wrap(advice_text(advice), width, "    ")


def _launch(patch_set: PatchSet) -> list[str]:
    lines = []
    for options in patch_set.launch:
        text = launch_text(Launch(options.args, options.env))
        lines.append(f"  {options.target} {options.versions}: {text}")
    return ["", "does nothing unless the server is started with", *lines] if lines else []
