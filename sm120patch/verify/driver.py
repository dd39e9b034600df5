"""`[driver]` of a profile: which client measures, and how its output is read. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sm120patch.tables import ANY, Table
from sm120patch.verify.dotted import descend

KINDS = ("native", "bench_serving", "command")
THROUGHPUT = "output_throughput"
PLACEHOLDERS = (
    "{url}", "{host}", "{port}", "{model}", "{tokenizer}", "{workload}", "{concurrency}",
    "{prompts}", "{input_len}", "{output_len}", "{seed}", "{repeat}", "{out}", "{python}",
    "{prefix}",
)  # fmt: skip
"""Replaced anywhere in an element of the command; `{out}` is a fresh file that it may write."""


@dataclass(frozen=True)
class Driver:
    """The client that sends the measured requests; warm-up and questions are always our own."""

    kind: str = "native"
    args: tuple[str, ...] = ()
    """bench_serving: further options, after ours."""
    command: tuple[str, ...] = ()
    """command: the argument list."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """command: figure -> where it stands in the JSON (dots descend)."""
    tokenizer: str | None = None
    timeout: float = 3600.0
    """Seconds for one repeat."""

    @property
    def native(self) -> bool:
        """True for the load generator of this program."""
        return self.kind == "native"

    @property
    def shaping(self) -> list[object]:
        """What of it shapes the figures; empty for the native one."""
        if self.native:
            return []
        metrics = sorted(self.metrics.items())
        return [self.kind, list(self.args), list(self.command), metrics, self.tokenizer]


class BadOutput(Exception):  # noqa: N818 - of another program, not an error of ours
    """What a client printed is not what it should be; the message says how."""


def read_driver(table: Table) -> Driver:
    """Read `[driver]`; notes every fault."""
    kind = table.choice("kind", KINDS, default="native")
    driver = Driver(
        kind=kind,
        args=table.texts("args", pattern=ANY, distinct=False),
        command=table.texts("command", pattern=ANY, distinct=False, required=kind == "command"),
        metrics=table.mapping("metrics", str),
        tokenizer=table.optional_text("tokenizer"),
        timeout=table.number("timeout", 1, 86400, default=3600),
    )
    if driver.args and kind != "bench_serving":
        table.fault("args", "belongs to kind bench_serving")
    if (driver.command or driver.metrics) and kind != "command":
        table.fault("command", "command and metrics belong to kind command")
    if kind == "command" and THROUGHPUT not in driver.metrics:
        table.fault("metrics", f"must say where {THROUGHPUT} stands in the JSON")
    for name in driver.metrics:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,60}", name):
            table.fault(f"metrics.{name}", "expected a name of lower case letters, digits and _")
    for index, word in enumerate(driver.command):
        for found in re.findall(r"\{[a-z_]+\}", word):
            if found not in PLACEHOLDERS:
                table.fault(f"command[{index}]", f"unknown placeholder {found}")
    table.finish()
    return driver


def filled(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Words with their placeholders replaced; a value is never looked into again."""
    pattern = re.compile("|".join(map(re.escape, PLACEHOLDERS)))
    return [pattern.sub(lambda m: values.get(m[0][1:-1], m[0]), word) for word in words]


def read_bench_line(text: str, prompts: int) -> dict[str, float]:
    """Figures of the last line that `bench_serving --output-file` wrote for `prompts` requests.

    Schemas from 0.5.5 to 0.5.23: numbers keep their names, anything else is left out. `failed` is
    added: bench_serving ends with 0 when requests have failed, and does not say how many.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    data = _object(lines[-1]) if lines else None
    if data is None:
        raise BadOutput("bench_serving wrote no line of JSON")
    figures = {name: value for name, found in data.items() if (value := _number(found)) is not None}
    for name in (THROUGHPUT, "completed"):
        if name not in figures:
            raise BadOutput(f"bench_serving's line has no number {name}")
    figures["failed"] = max(0.0, prompts - figures["completed"])
    return figures


def read_output(text: str, metrics: Mapping[str, str], prompts: int) -> dict[str, float]:
    """Figures of a command's output: all of it, or its last line that is a JSON object.

    `failed` follows from `completed` where only that is given. Raises BadOutput that names the
    figure that is missing or no finite number.
    """
    data = _object(text)
    if data is None:
        found = (_object(line) for line in reversed(text.splitlines()))
        data = next((line for line in found if line is not None), None)
    if data is None:
        raise BadOutput("the command printed no JSON object")
    figures = {}
    for name, path in metrics.items():
        value = _number(descend(data, path)[1])
        if value is None:
            raise BadOutput(f"the command's JSON has no finite number at {path} ({name})")
        figures[name] = value
    if "failed" not in figures:
        figures["failed"] = max(0.0, prompts - figures.get("completed", float(prompts)))
    return figures


def _object(text: str) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
