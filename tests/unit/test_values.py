"""Values must not be told apart from what the standard library's decorator makes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120patch import values


@values.dataclass(frozen=True)
class Own:
    kind: ClassVar[str] = "of the class"
    name: str
    count: int = 3
    notes: tuple[str, ...] = values.field(default=(), repr=False)
    seen: dict[str, int] = values.field(default_factory=dict, compare=False)


@dataclasses.dataclass(frozen=True)
class Standard:
    kind: ClassVar[str] = "of the class"
    name: str
    count: int = 3
    notes: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    seen: dict[str, int] = dataclasses.field(default_factory=dict, compare=False)


@values.dataclass
class Draft:
    lines: list[str] = values.field(default_factory=list)
    closed: bool = False


@values.dataclass(frozen=True)
class Longer(Own):
    more: str = ""


FIELDS = ["name", "count", "notes", "seen", "other"]
calls = st.tuples(
    st.lists(st.integers(0, 2), max_size=5),
    st.dictionaries(st.sampled_from(FIELDS), st.integers(0, 2)),
)


@given(calls)
def test_every_call_is_answered_as_the_standard_library_does(
    call: tuple[list[int], dict[str, int]],
) -> None:
    positional, named = call

    def made(kind: Any) -> Any:
        try:
            return kind(*positional, **named)
        except TypeError:
            return None

    own, standard = made(Own), made(Standard)
    assert (own is None) == (standard is None)
    if own is not None:
        assert list(vars(own)) == list(vars(standard))
        assert vars(own) == vars(standard)
        assert repr(own).replace("Own", "Standard") == repr(standard)
        assert values.asdict(own) == dataclasses.asdict(standard)


@given(st.text(), st.integers(), st.text(), st.integers())
def test_equal_content_is_equal_and_hashes_alike(a: str, m: int, b: str, n: int) -> None:
    one, other = Own(a, m, seen={"x": 1}), Own(b, n)
    assert (one == other) == ((a, m) == (b, n))
    assert one == Own(a, m) and hash(one) == hash(Own(a, m))
    assert one != (a, m, ()) and one != Longer(a, m)


def test_frozen_values_stay_as_they_are_and_drafts_do_not() -> None:
    value = Own("a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.name = "b"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.name
    draft = Draft()
    draft.closed = True
    assert draft == Draft(closed=True) and Draft().lines is not draft.lines
    with pytest.raises(TypeError, match="unhashable"):
        hash(draft)


def test_the_standard_library_takes_them_for_its_own() -> None:
    value = Own("a", seen={"x": 1})
    assert dataclasses.is_dataclass(value)
    assert [f.name for f in dataclasses.fields(value)] == ["name", "count", "notes", "seen"]
    assert dataclasses.replace(value, count=4) == values.replace(value, count=4) == Own("a", 4)
    assert dataclasses.asdict(value) == values.asdict(value)
    assert [f.name for f in dataclasses.fields(Longer)][-1] == "more"
    assert values.replace(Longer("a"), more="x") == Longer("a", more="x")


def test_both_kinds_are_replaced_and_made_plain_alike() -> None:
    standard = Standard("a", seen={"x": 1})
    assert values.replace(standard, count=4) == Standard("a", 4)
    assert values.asdict(standard) == dataclasses.asdict(standard)


def test_values_can_be_copied_and_pickled() -> None:
    value = Longer("a", 5, more="z")
    assert copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value


def test_values_inside_of_values_become_plain() -> None:
    @values.dataclass(frozen=True)
    class Outer:
        inner: tuple[Own, ...]
        named: dict[str, list[Own]]

    plain = {"name": "a", "count": 3, "notes": (), "seen": {}}
    outer = Outer((Own("a"),), {"k": [Own("a")]})
    assert values.asdict(outer) == {"inner": (plain,), "named": {"k": [plain]}}


def test_a_class_may_check_what_it_is_given() -> None:
    @values.dataclass(frozen=True)
    class Checked:
        count: int

        def __post_init__(self) -> None:
            if self.count < 0:
                raise ValueError("negative")

    with pytest.raises(ValueError, match="negative"):
        Checked(-1)
