"""The runtime gate's condition as a command of libcst's own codemod tool, for comparison."""

from __future__ import annotations

import libcst as cst
from libcst.codemod import VisitorBasedCodemodCommand

OLD = cst.parse_expression("_is_sm90_supported or _is_sm100_supported")
NEW = cst.parse_expression("_is_sm90_supported or _is_sm100_supported or _is_sm120_supported")


class GateCommand(VisitorBasedCodemodCommand):
    DESCRIPTION = "Let SM120 through the condition."

    def leave_BooleanOperation(  # noqa: N802 - libcst's name
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        bare = original_node.with_changes(lpar=(), rpar=())
        if not bare.deep_equals(OLD):
            return updated_node
        return NEW.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)
