"""Read which modules of a set can be compiled ahead of a server, and what must be seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sm120patch.manifest.ranges import check_disjoint, read_range
from sm120patch.model import ID, Change, CompileCheck, PtxCount
from sm120patch.tables import ONE_LINE, Table

_MODULE = r"[A-Za-z0-9_]{1,200}"
_GENERATOR = r"flashinfer(\.[A-Za-z_][A-Za-z0-9_]*)+:[A-Za-z_][A-Za-z0-9_]*"
_SOURCE = r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.cu"
_ARCH = r"[0-9]{2,3}[af]?"
_MOST = 10_000_000


def read_compile(root: Table, changes: Sequence[Change]) -> tuple[CompileCheck, ...]:
    """Read every `[[compile]]`; one at most counts for a module and a version."""
    tables = root.tables("compile")
    checks = tuple(_check(table, changes) for table in tables)
    for module in {check.module for check in checks}:
        chosen = [i for i, check in enumerate(checks) if check.module == module]
        check_disjoint([tables[i] for i in chosen], [checks[i].versions for i in chosen])
    return checks


def _check(table: Table, changes: Sequence[Change]) -> CompileCheck:
    check = CompileCheck(
        target=table.choice("target", ("flashinfer-python",)),
        versions=read_range(table),
        module=table.text("module", pattern=_MODULE),
        generator=table.text("generator", pattern=_GENERATOR),
        ptx=tuple(_count(t, changes) for t in table.tables("ptx")),
    )
    table.finish()
    return check


def _count(table: Table, changes: Sequence[Change]) -> PtxCount:
    count = PtxCount(
        change=table.text("change", pattern=ID),
        source=table.text("source", pattern=_SOURCE),
        arch=table.text("arch", pattern=_ARCH),
        text=table.text("text", pattern=ONE_LINE),
        before=table.integer("before", 0, _MOST),
        after=table.integer("after", 0, _MOST),
        same=table.flag("same", default=False),
    )
    if count.change and count.change not in {change.id for change in changes}:
        table.fault("change", f"{count.change!r} is no change of this set")
    if count.same and count.before != count.after:
        table.fault("same", "the PTX cannot be the same where the counts differ")
    if not count.same and count.before == count.after:
        table.fault("after", "shows nothing: it is the same as before")
    table.finish()
    return count
