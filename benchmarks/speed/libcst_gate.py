"""The runtime gate of `sm120-checks` as a command of libcst's own codemod tool, for comparison."""

from __future__ import annotations

import libcst as cst
from libcst.codemod import VisitorBasedCodemodCommand

HELPER = "is_sm100_supported"
OLD = cst.parse_expression("_is_sm90_supported or _is_sm100_supported")
NEW = cst.parse_expression("_is_sm90_supported or _is_sm100_supported or _is_sm120_supported")
VARIABLE = cst.parse_statement("_is_sm100_supported = _is_cuda and is_sm100_supported()\n")
FOLLOWING = cst.parse_statement("_is_sm120_supported = _is_cuda and is_sm120_supported()\n")


class GateCommand(VisitorBasedCodemodCommand):
    DESCRIPTION = "Import the helper, ask it, and let SM120 through the condition."

    def leave_ImportFrom(  # noqa: N802 - libcst's name
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom:
        names = updated_node.names
        if isinstance(names, cst.ImportStar):
            return updated_node
        found = [at for at, alias in enumerate(names) if alias.name.value == HELPER]
        if not found:
            return updated_node
        at = found[0] + 1
        more = names[at - 1].with_changes(name=cst.Name("is_sm120_supported"))
        return updated_node.with_changes(names=(*names[:at], more, *names[at:]))

    def leave_SimpleStatementLine(  # noqa: N802 - libcst's name
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        if original_node.with_changes(leading_lines=()).deep_equals(VARIABLE):
            return cst.FlattenSentinel([updated_node, FOLLOWING])
        return updated_node

    def leave_BooleanOperation(  # noqa: N802 - libcst's name
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        bare = original_node.with_changes(lpar=(), rpar=())
        if not bare.deep_equals(OLD):
            return updated_node
        return NEW.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)
