"""Typed getters over a parsed TOML table that collect every fault with its key path. Pure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence


class Table:
    """One table of a document; every getter marks its key as known and returns a usable value.

    A fault never stops the reading: the getter notes it in the shared list and returns the
    default, so that one pass names everything that is wrong.
    """

    def __init__(self, data: object, path: str, faults: list[str]) -> None:
        self.path = path
        self.faults = faults
        self._known: set[str] = set()
        self._data: Mapping[str, object] = {}
        if isinstance(data, dict):
            self._data = data
        else:
            faults.append(f"{path or 'document'}: expected a table, found {_kind(data)}")

    def __contains__(self, key: str) -> bool:
        return key in self._data

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the table in the order of the file."""
        return tuple(self._data)

    def fault(self, key: str, text: str) -> None:
        """Note a fault at `key`."""
        self.faults.append(f"{self._at(key)}: {text}")

    def table(self, key: str) -> Table:
        """Sub-table; an absent one reads as empty."""
        self._known.add(key)
        return Table(self._data.get(key, {}), self._at(key), self.faults)

    def text(self, key: str, default: str | None = None, *, required: bool = False) -> str | None:
        """Non-empty string."""
        value = self._get(key, required)
        if value is None:
            return default
        if isinstance(value, str) and value and "\0" not in value:
            return value
        self.fault(key, f"expected a non-empty string, found {_kind(value)}")
        return default

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """One of `choices`."""
        value = self._get(key, False)
        if value is None:
            return default
        if isinstance(value, str) and value in choices:
            return value
        self.fault(key, f"expected one of {', '.join(choices)}, found {value!r}")
        return default

    def whole(self, key: str, default: int | None, low: int, high: int) -> int | None:
        """Whole number in `low..high`."""
        value = self._get(key, False)
        if value is None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.fault(key, f"expected a whole number in {low}..{high}, found {value!r}")
        return default

    def number(self, key: str, default: float | None, low: float, high: float) -> float | None:
        """Finite number in `low..high`."""
        value = self._get(key, False)
        if value is None:
            return default
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = float(value)
            if math.isfinite(number) and low <= number <= high:
                return number
        self.fault(key, f"expected a number in {low:g}..{high:g}, found {value!r}")
        return default

    def truth(self, key: str) -> bool | None:
        """Truth value; None when it is not given."""
        value = self._get(key, False)
        if value is None or isinstance(value, bool):
            return value
        self.fault(key, f"expected true or false, found {_kind(value)}")
        return None

    def strings(self, key: str, *, required: bool = False) -> tuple[str, ...]:
        """List of strings; `required` also forbids the empty list."""
        value = self._get(key, required)
        if value is None:
            return ()
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            if required and not value:
                self.fault(key, "expected at least one element")
            for index, item in enumerate(value):
                if "\0" in item:
                    self.fault(f"{key}[{index}]", "contains a NUL byte")
            return tuple(value)
        self.fault(key, f"expected a list of strings, found {_kind(value)}")
        return ()

    def mapping(self, key: str) -> dict[str, str]:
        """Table of strings."""
        value = self._get(key, False)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fault(key, f"expected a table of strings, found {_kind(value)}")
            return {}
        for name, item in value.items():
            if not isinstance(item, str) or "\0" in item:
                self.fault(f"{key}.{name}", f"expected a string, found {_kind(item)}")
            if not name or "=" in name or "\0" in name:
                self.fault(key, f"{name!r} is no usable name")
        return {name: item for name, item in value.items() if isinstance(item, str)}

    def done(self) -> None:
        """Note every key that no getter asked for, with the nearest known one."""
        for key in self._data:
            if key not in self._known:
                near = difflib.get_close_matches(key, sorted(self._known), n=1)
                self.fault(key, "unknown key" + (f"; did you mean {near[0]}?" if near else ""))

    def _get(self, key: str, required: bool) -> object:
        self._known.add(key)
        if required and key not in self._data:
            self.fault(key, "missing")
        return self._data.get(key)

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def _kind(value: object) -> str:
    names = {str: "a string", bool: "a truth value", int: "a number", float: "a number",
             list: "a list", dict: "a table"}  # fmt: skip
    if value == "":
        return "an empty string"
    if isinstance(value, str) and "\0" in value:
        return "a NUL byte"
    return names.get(type(value), "a date or time")
