"""Facts come from other machines: whatever they hold, the report comes out, bounded and clean."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm120patch.fleet.answers import comparison_dict, fleet_dict
from sm120patch.fleet.compare import compare
from sm120patch.fleet.expected import inventory_of, names_of
from sm120patch.fleet.node import NodeFacts
from sm120patch.fleet.overview import FailOn, overview
from sm120patch.fleet.page import render
from sm120patch.fleet.tables import comparison_text, fleet_text
from tests.support.facts import DEEP, NOW, event, parsed, result, small
from tests.support.pages import Page, check_harmless

# A whole report is made of every example: on a busy machine that may take a second.
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.sampled_from(["\x1b[2J", "<script>", "\ud800", "real", "applied", "gpu-01", "x" * 5000]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner,
                                                               max_size=4),
    max_leaves=12,
)  # fmt: skip


def usual(name: str = "gpu-01") -> dict[str, Any]:
    facts = small(name, now=NOW, groups=["s0"])
    result(facts, "history")["events"] = [event(1000.0)]
    result(facts, "caches")["touched"] = [{"module": "m", "arch": "120a", "live": "patched"}]
    result(facts, "doctor")["checks"] = [{"id": "p2p", "status": "ok", "summary": "all"}]
    return facts


def places(found: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Way to every value in facts."""
    children = found.items() if isinstance(found, dict) else enumerate(found)  # type: ignore[arg-type]
    for key, value in children:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


PLACES = list(places(usual()))


def check_report(node: NodeFacts) -> None:
    """All forms of the report come out, small, clean and harmless."""
    assert node.unknown or all(s.kind == "real" for s in node.sets.values() if s.counts)
    other = parsed(usual("gpu-02"), "gpu-02", DEEP)
    fleet = overview([node, other])
    found = compare(node, other)
    if node.unknown:
        assert FailOn(frozenset()).fails(fleet.findings) and found.unknown
    for text in (fleet_text(fleet, NOW), comparison_text(found)):
        assert len(text) < 300_000
        bad = [c for c in text if c not in "\n\t" and unicodedata.category(c)[0] == "C"]
        assert bad == []
    html = render(fleet, found, NOW, "1")
    assert len(html) < 2_000_000
    check_harmless(Page(html))
    for data in (fleet_dict(fleet), comparison_dict(found)):
        assert "NaN" not in json.dumps(data, default=str)


@CALM
@given(st.binary(max_size=300))
def test_any_bytes_are_read(data: bytes):
    check_report(parsed(data, how=DEEP))
    names_of(data)
    inventory_of(data)


@CALM
@given(VALUES)
def test_any_json_is_read(value: object):
    data = json.dumps(value).encode()
    check_report(parsed(data, how=DEEP))
    inventory_of(data)


@settings(CALM, max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=4))
def test_any_value_anywhere_in_facts_is_read(changes: list[tuple[tuple[Any, ...], object]]):
    facts = usual()
    for path, value in changes:
        holder: Any = facts
        try:
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = value
        except (TypeError, KeyError, IndexError):
            continue  # an earlier change has taken it away
    check_report(parsed(facts, how=DEEP))


@CALM
@given(st.sampled_from(PLACES))
def test_anything_may_be_missing(path: tuple[Any, ...]):
    facts: Any = usual()
    holder = facts
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    check_report(parsed(facts, how=DEEP))


@CALM
@given(st.integers(0, 4000))
def test_a_file_that_was_cut_off_is_unknown(at: int):
    data = json.dumps(usual()).encode()
    assert parsed(data[: min(at, len(data) - 1)], how=DEEP).unknown
