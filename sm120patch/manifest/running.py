"""Read what a manifest says about running servers: options, engagement, verification. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sm120patch.known import WHERE
from sm120patch.manifest.ranges import check_disjoint, read_range, read_requires
from sm120patch.model import (
    IMPORT_NAMES,
    Advice,
    Answers,
    Engagement,
    Goal,
    KnownResult,
    LaunchOptions,
    VerificationPolicy,
)
from sm120patch.tables import ONE_LINE, Table

_OPTION = r"--[a-z0-9][a-z0-9-]*"
_MODULE = r"[A-Za-z0-9_]*"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"


def read_launch(root: Table) -> tuple[LaunchOptions, ...]:
    """Read every `[[launch]]`; one at most counts for a version of a target."""
    tables = root.tables("launch")
    launch = tuple(_launch_options(table) for table in tables)
    _check_disjoint_by_target(tables, launch)
    return launch


def _launch_options(table: Table) -> LaunchOptions:
    options = LaunchOptions(
        target=table.choice("target", tuple(IMPORT_NAMES)),
        versions=read_range(table),
        args=table.texts("args", pattern=ONE_LINE, distinct=False),
        env=table.mapping("env", str, pattern=_VARIABLE),
        strip=table.mapping("strip", int, pattern=_OPTION),
        strip_env=table.texts("strip-env", pattern=_VARIABLE),
    )
    for option, values in options.strip.items():
        if not 0 <= values <= 9:
            table.fault(f"strip.{option}", f"{values} is no number of values")
    for argument in options.args:
        if argument.startswith("--") and argument not in options.strip:
            table.fault("strip", f"{argument} is not in it, so the baseline would keep the option")
    for name in options.env:
        if name not in options.strip_env:
            table.fault("strip-env", f"{name} is not in it, so the baseline would keep it")
    if not options.args and not options.env:
        table.fault("args", "neither args nor env are given")
    table.finish()
    return options


def read_advice(root: Table) -> tuple[Advice, ...]:
    """Read every `[[advice]]`; one at most counts for a version of a target."""
    tables = root.tables("advice")
    advice = tuple(_advice(table) for table in tables)
    _check_disjoint_by_target(tables, advice)
    return advice


def _advice(table: Table) -> Advice:
    advice = Advice(
        target=table.choice("target", tuple(IMPORT_NAMES)),
        versions=read_range(table),
        outcome=table.choice("outcome", ("set", "refused")),
        args=table.texts("args", pattern=ONE_LINE, distinct=False),
        env=table.mapping("env", str, pattern=_VARIABLE),
        reason=table.text("reason", pattern=ONE_LINE),
        requires=read_requires(table),
    )
    given = bool(advice.args or advice.env)
    if given != (advice.outcome == "set"):
        word = "names nothing to set" if not given else "names what to set, yet is refused"
        table.fault("outcome", f"{advice.outcome!r}, but the advice {word}")
    table.finish()
    return advice


def read_engagement(root: Table) -> tuple[Engagement, ...]:
    """Read every `[[engagement]]`; one at most counts for a version of a target."""
    tables = root.tables("engagement")
    engagement = tuple(_probes(table) for table in tables)
    _check_disjoint_by_target(tables, engagement)
    return engagement


def _probes(table: Table) -> Engagement:
    probes = Engagement(
        target=table.choice("target", tuple(IMPORT_NAMES)),
        versions=read_range(table),
        server_info=table.mapping("server-info", object),
        log=_regex(table, "log"),
        log_absent=_regex(table, "log-absent"),
        loaded=_regex(table, "loaded"),
        jit_module=table.text("jit-module", default="", pattern=_MODULE) or None,
    )
    for name, value in probes.server_info.items():
        if not isinstance(value, str | int | float):
            table.fault(f"server-info.{name}", f"{value!r} is no plain value")
    if not any((probes.server_info, probes.log, probes.loaded, probes.jit_module)):
        table.fault(
            "log",
            "neither server-info, log, loaded nor jit-module is given, so nothing would be seen",
        )
    table.finish()
    return probes


def _regex(table: Table, key: str) -> str | None:
    text = table.text(key, default="")
    try:
        re.compile(text)
    except re.error as error:
        table.fault(key, f"no regular expression: {error}")
    return text or None


def read_verification(table: Table) -> VerificationPolicy:
    """Read `[verification]`; what is not given has the defaults of the model."""
    default = VerificationPolicy()
    policy = VerificationPolicy(
        goal=Goal(table.choice("goal", [goal.value for goal in Goal], default=default.goal.value)),
        margin=table.number("margin", 0.0, 0.5, default=default.margin),
        repeats=table.integer("repeats", 1, 100, default=default.repeats),
        blocks=table.integer("blocks", 1, 20, default=default.blocks),
        answers=Answers(
            table.choice("answers", [a.value for a in Answers], default=default.answers.value)
        ),
    )
    if policy.margin in (0.0, 0.5):
        table.fault("margin", f"{policy.margin} is not between 0.0 and 0.5")
    table.finish()
    return policy


def read_known_results(root: Table) -> tuple[KnownResult, ...]:
    """Read every `[[known-result]]`."""
    return tuple(_known_result(table) for table in root.tables("known-result"))


def _known_result(table: Table) -> KnownResult:
    result = KnownResult(
        topology=table.text("topology", pattern=ONE_LINE),
        effect=table.text("effect", pattern=ONE_LINE),
        source=table.text("source", pattern=ONE_LINE),
        harmful=table.flag("harmful", default=False),
        where=table.texts("where", pattern=WHERE),
        tp=table.integers("tp", 1, 1024),
    )
    table.finish()
    return result


def _check_disjoint_by_target(
    tables: Sequence[Table], items: Sequence[LaunchOptions | Engagement | Advice]
) -> None:
    for target in IMPORT_NAMES:
        same = [(t, i.versions) for t, i in zip(tables, items, strict=True) if i.target == target]
        check_disjoint([table for table, _ in same], [text for _, text in same])
