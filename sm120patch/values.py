"""Frozen values as `dataclasses.dataclass` makes them, without what it costs to make the class.

Pure. The standard decorator writes and compiles source for every class: half a millisecond each,
30 ms for the classes that `status` loads, which is more than all its work. The methods here are
closures over the fields' names. For everybody else (`dataclasses.replace`, `asdict`, type
checkers, readers) the classes are dataclasses; a test holds both kinds against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["asdict", "dataclass", "field", "replace"]

_OWN = "__sm120patch_fields__"
_MISSING: Any = type("_Missing", (), {"__repr__": lambda _self: "<missing>"})()


class _Field:
    """What `field()` says about one field."""

    __slots__ = ("compare", "default", "factory", "repr")

    def __init__(
        self,
        default: Any = _MISSING,
        factory: Any = _MISSING,
        repr: bool = True,
        compare: bool = True,
    ) -> None:
        self.default, self.factory = default, factory
        self.repr, self.compare = repr, compare


if TYPE_CHECKING:
    from dataclasses import asdict, dataclass, field, replace
else:

    def field(*, default=_MISSING, default_factory=_MISSING, repr=True, compare=True):
        """Describe a field; the keywords mean what they mean for `dataclasses.field`."""
        return _Field(default, default_factory, repr, compare)

    def replace(value, /, **changes):
        """Return a copy of `value` in which the named fields are others."""
        names = getattr(type(value), _OWN, None)
        if names is None:
            return _standard().replace(value, **changes)
        return type(value)(**{n: getattr(value, n) for n in names if n not in changes}, **changes)

    def asdict(value, /):
        """Return the fields as a dict, values inside of values likewise."""
        names = getattr(type(value), _OWN, None)
        if names is None:
            return _standard().asdict(value)
        return {name: _plain(getattr(value, name)) for name in names}

    def dataclass(cls=None, /, *, frozen=False):
        """Make a class of annotated fields a value: keyword or positional, equal by content."""
        if cls is None:
            return lambda made: dataclass(made, frozen=frozen)
        fields = _collect(cls)
        setattr(cls, _OWN, fields)
        cls.__match_args__ = tuple(fields)
        key = _key([n for n, f in fields.items() if f.compare])
        shown = [n for n, f in fields.items() if f.repr]
        own = cls.__dict__
        made = {"__init__": _init(fields, hasattr(cls, "__post_init__")), "__repr__": _repr(shown)}
        if "__eq__" not in own:
            made |= {"__eq__": _eq(key), "__hash__": None}
        if frozen:
            made |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
            made["__hash__"] = lambda self: hash(key(self))
        for name, method in made.items():
            if name not in own or (name == "__hash__" and own[name] is None):
                setattr(cls, name, method)
        cls.__dataclass_fields__ = _AsDataclass(frozen)
        return cls


def _standard() -> Any:
    import dataclasses

    return dataclasses


def _plain(value: Any) -> Any:
    if hasattr(type(value), "__dataclass_fields__"):
        return asdict(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(inner) for inner in value)
    return value


def _collect(cls: Any) -> dict[str, Any]:
    """Fields of the bases, then of the class; what `field()` left behind becomes a default."""
    fields: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:]):
        fields |= base.__dict__.get(_OWN, {})
    for name, kind in _annotations(cls).items():
        if str(kind).startswith(("ClassVar", "typing.ClassVar")):
            continue
        given = cls.__dict__.get(name, _MISSING)
        if isinstance(given, _Field):
            if given.default is _MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, given.default)
        else:
            given = _Field(given)
        fields[name] = given
    return fields


def _init(fields: dict[str, Any], after: bool) -> Callable[..., None]:
    names = tuple(fields)
    blank = {name: f.default for name, f in fields.items()}
    factories = tuple((n, f.factory) for n, f in fields.items() if f.factory is not _MISSING)
    required = tuple(n for n, f in fields.items() if f.default is f.factory)

    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        values = blank.copy()
        if args:
            values.update(zip(names, args, strict=False))
            if len(args) > len(names) or not kwargs.keys().isdisjoint(names[: len(args)]):
                raise TypeError(f"{type(self).__name__}: a field is given twice, or too many are")
        values.update(kwargs)
        if len(values) > len(names):
            unknown = ", ".join(kwargs.keys() - set(names))
            raise TypeError(f"{type(self).__name__} has no field {unknown}")
        for name, factory in factories:
            if values[name] is _MISSING:
                values[name] = factory()
        for name in required:
            if values[name] is _MISSING:
                raise TypeError(f"{type(self).__name__} needs the field {name!r}")
        self.__dict__.update(values)
        if after:
            self.__post_init__()

    return __init__


def _repr(names: list[str]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:  # noqa: N807
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({inside})"

    return __repr__


def _key(names: list[str]) -> Callable[[Any], Any]:
    return attrgetter(*names) if names else lambda _self: ()


def _eq(key: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def __eq__(self: Any, other: Any) -> Any:  # noqa: N807
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _refuse_set(_self: Any, name: str, _value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(_self: Any, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


class _AsDataclass:
    """`__dataclass_fields__`, made by the standard library when somebody asks for it."""

    def __init__(self, frozen: bool) -> None:
        self._frozen = frozen

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        import dataclasses

        def standard(f: Any) -> Any:
            words = {"repr": f.repr, "compare": f.compare}
            if f.default is not _MISSING:
                words["default"] = f.default
            if f.factory is not _MISSING:
                words["default_factory"] = f.factory
            return dataclasses.field(**words)

        kinds = {n: k for c in reversed(owner.__mro__) for n, k in _annotations(c).items()}
        known = getattr(owner, _OWN)
        parts = [(name, kinds[name], standard(f)) for name, f in known.items()]
        made = dataclasses.make_dataclass(owner.__name__, parts, frozen=self._frozen)
        fields = made.__dict__["__dataclass_fields__"]
        owner.__dataclass_fields__ = fields
        return fields


def _annotations(cls: type[Any]) -> dict[str, Any]:
    # What `inspect` would be asked for costs 15 ms to import.
    found: dict[str, Any] = cls.__dict__.get("__annotations__", {})  # noqa: RUF063
    return found
