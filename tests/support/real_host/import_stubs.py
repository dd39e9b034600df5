"""Stand-ins for packages that SGLang imports on a CPU and does not use there.

`sgl_kernel` has no wheel for CPUs, `triton` and `torchvision` are a gigabyte, `datasets` and
`IPython` are for its benchmark's downloads and its notebooks. Everything in them can be imported,
named in an annotation, inherited from and used as a decorator; a call raises.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

ABSENT = ("IPython", "datasets", "sgl_kernel", "torchvision", "triton")
DECLARATIONS = ("Config", "autotune", "constexpr", "heuristics", "jit")
"""Names of Triton that modules call while they are imported."""


class Stub(type):
    """Metaclass of the stand-ins: a class can be a base, a decorator or a namespace."""

    def __getattr__(cls, name: str) -> Stub:
        return stub(cls.__qualname__, name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__name__ not in DECLARATIONS:
            raise RuntimeError(f"{cls.__qualname__} is there to be imported, not to be called")
        return args[0] if args and callable(args[0]) else lambda function: function

    def __contains__(cls, _item: object) -> bool:
        return False  # torch looks for "cpu" among Triton's back ends


def stub(parent: str, name: str) -> Stub:
    if name.startswith("__"):
        raise AttributeError(name)  # nobody may take a stand-in for a protocol
    return Stub(name, (), {"__qualname__": f"{parent}.{name}", "__module__": parent})


class Module(types.ModuleType):
    __version__ = "3.6.0"  # Triton's: some modules choose by it

    def __getattr__(self, name: str) -> Stub:
        return stub(self.__name__, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """Answer for packages that nothing else on the path answers for."""
    sys.meta_path.append(Finder())
