"""Typed access to decoded TOML that notes every fault with its key path. Pure.

A getter never raises: it notes what is wrong and returns a neutral value, so that one pass over a
document finds all its faults. The caller looks at `faults` before it uses anything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

T = TypeVar("T")

ONE_LINE = r"[^\n\r\0]+"
ANY = r"[^\0]*"


class Table:
    """One table of a document, its key path and the list that collects faults."""

    def __init__(self, data: Mapping[str, object], path: str, faults: list[str]) -> None:
        self._data = data
        self._path = path
        self._faults = faults
        self._known: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._data

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys in the order of the document."""
        return tuple(self._data)

    def fault(self, key: str, message: str) -> None:
        """Note a fault of the value at `key`."""
        self._faults.append(f"{self._at(key)}: {message}")

    def text(self, key: str, *, default: str | None = None, pattern: str | None = None) -> str:
        """Return a string, required unless there is a default, that matches `pattern` wholly."""
        value = self._get(key, str, "a string", default)
        if value is None:
            return ""
        if not value.strip() and default is None:
            self.fault(key, "is empty")
        elif pattern is not None and not re.fullmatch(pattern, value):
            self.fault(key, f"{value!r} does not match {pattern}")
        return value

    def optional_text(self, key: str) -> str | None:
        """Return a string that says something, None when the key is missing."""
        value = self._find(key, str, "a string")
        if value is not None and not value.strip():
            self.fault(key, "is empty")
            return None
        return value

    def choice(self, key: str, allowed: Collection[str], *, default: str | None = None) -> str:
        """Return one of `allowed`; the first of them in place of a wrong one."""
        value = self._get(key, str, "a string", default)
        if value is not None and value in allowed:
            return value
        if value is not None:
            self.fault(key, f"{value!r} is none of {', '.join(allowed)}")
        return next(iter(allowed))

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean."""
        return bool(self._get(key, bool, "true or false", default))

    def optional_flag(self, key: str) -> bool | None:
        """Return a boolean, None when the key is missing."""
        return self._find(key, bool, "true or false")

    def integer(self, key: str, low: int, high: int, *, default: int | None = None) -> int:
        """Return an integer in `low`..`high`."""
        value = self._get(key, int, "an integer", default)
        return low if value is None or not self._within(key, value, low, high) else value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        """Return an integer in `low`..`high`, None when the key is missing."""
        value = self._find(key, int, "an integer")
        return None if value is None or not self._within(key, value, low, high) else value

    def number(self, key: str, low: float, high: float, *, default: float) -> float:
        """Return a number in `low`..`high`."""
        value = self.optional_number(key, low, high)
        return default if value is None else value

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        """Return a number in `low`..`high`, None when the key is missing."""
        value = self._find(key, float, "a number")
        return None if value is None or not self._within(key, value, low, high) else float(value)

    def texts(
        self, key: str, *, pattern: str = ONE_LINE, distinct: bool = True, required: bool = False
    ) -> tuple[str, ...]:
        """Return an array of strings, empty when the key is missing; `required`: one at least."""
        values = self._get(key, list, "an array of strings", None if required else [])
        if required and values == []:
            self.fault(key, "is empty")
        found: list[str] = []
        for index, value in enumerate(values or []):
            if self._has_nul(f"{key}[{index}]", value):
                continue
            if not isinstance(value, str) or not re.fullmatch(pattern, value):
                self.fault(f"{key}[{index}]", f"{value!r} is no string that matches {pattern}")
            elif distinct and value in found:
                self.fault(f"{key}[{index}]", f"{value!r} is there twice")
            else:
                found.append(value)
        return tuple(found)

    def integers(self, key: str, low: int, high: int) -> tuple[int, ...]:
        """Return an array of distinct integers in `low`..`high`, empty when the key is missing."""
        found: list[int] = []
        for index, value in enumerate(self._get(key, list, "an array of integers", []) or []):
            if not _is(value, int) or not low <= value <= high:
                self.fault(f"{key}[{index}]", f"{value!r} is no integer in {low}..{high}")
            elif value in found:
                self.fault(f"{key}[{index}]", f"{value!r} is there twice")
            else:
                found.append(value)
        return tuple(found)

    def mapping(self, key: str, kind: type[T], *, pattern: str = ONE_LINE) -> dict[str, T]:
        """Return a table of values of one kind, empty when the key is missing."""
        values = self._get(key, dict, "a table", {})
        found: dict[str, T] = {}
        for name, value in (values or {}).items():
            if not re.fullmatch(pattern, name):
                self.fault(key, f"the key {name!r} does not match {pattern}")
            elif not _is(value, kind):
                self.fault(f"{key}.{name}", f"{value!r} is not {kind.__name__}")
            elif not self._has_nul(f"{key}.{name}", value):
                found[name] = value
        return found

    def table(self, key: str, *, required: bool = False) -> Table:
        """Return the table below `key`, empty when it is missing."""
        value = self._get(key, dict, "a table", None if required else {})
        return Table(value or {}, self._at(key), self._faults)

    def tables(self, key: str) -> list[Table]:
        """Return the tables of an array of tables."""
        values = self._get(key, list, "an array of tables", [])
        found = []
        for index, value in enumerate(values or []):
            if isinstance(value, dict):
                found.append(Table(value, f"{self._at(key)}[{index}]", self._faults))
            else:
                self.fault(f"{key}[{index}]", "is not a table")
        return found

    def finish(self) -> None:
        """Note every key that nobody asked for, with the nearest of those that somebody did."""
        for key in self._data:
            if key not in self._known:
                import difflib

                near = difflib.get_close_matches(key, sorted(self._known), n=1)
                self.fault(key, "unknown key" + (f"; did you mean {near[0]}?" if near else ""))

    def _at(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _get(self, key: str, kind: type[T], word: str, default: T | None) -> T | None:
        """Value of that kind, else the default; without a default a missing one is a fault."""
        if key not in self._data and default is None:
            self.fault(key, "is missing")
        value = self._find(key, kind, word)
        return default if value is None else value

    def _find(self, key: str, kind: type[T], word: str) -> T | None:
        """Value of that kind; None when there is none, which is a fault when there is another."""
        self._known.add(key)
        if key not in self._data:
            return None
        value = self._data[key]
        if not (_is(value, kind) or (kind is float and _is(value, int))):
            self.fault(key, f"expected {word}, found {value!r}")
            return None
        if self._has_nul(key, value):
            return None
        return value  # type: ignore[return-value]  # of `kind`, as `_is` says

    def _has_nul(self, key: str, value: object) -> bool:
        """Whether it is a string that no file name, argument or variable can be."""
        if not isinstance(value, str) or "\0" not in value:
            return False
        self.fault(key, "contains a NUL byte")
        return True

    def _within(self, key: str, value: float, low: float, high: float) -> bool:
        if low <= value <= high:
            return True
        self.fault(key, f"{value} is not in {low}..{high}")
        return False


def _is(value: object, kind: type) -> bool:
    """Like isinstance, but a boolean is no integer."""
    return isinstance(value, kind) and (kind is bool or kind is object or type(value) is not bool)
