"""Let SGLang tune FlashInfer's CUTLASS fused MoE at start (`model_runner.py`, to 0.5.12.post1).

`_should_run_flashinfer_autotune` lists the MoE backends that are tuned before the CUDA graphs are
captured. "flashinfer_cutlass" stands there as a comment, beneath a note about compilation errors,
from 0.5.7 on. SGLang 0.5.13 has it in the list.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from sm120patch.codemod import Codemod, Edit, Function, Site, has

if TYPE_CHECKING:
    import libcst as cst

BACKEND = '"flashinfer_cutlass"'
TUNED = Function("ModelRunner._should_run_flashinfer_autotune")
COMMENT = re.compile(rf"# TODO: flashinfer_cutlass [^\r\n]*\r?\n[ \t]*# ({BACKEND},)(?=\r?\n)")


def uncomment(module: cst.Module) -> tuple[cst.Module, int]:
    """Put the commented element into the list, in place of the note above it."""
    import libcst as cst

    code, hits = COMMENT.subn(r"\1", module.code)
    return cst.parse_module(code).with_changes(default_newline=module.default_newline), hits


def is_listed(tree: ast.Module) -> list[str]:
    """What the MoE backend is looked for in must hold the CUTLASS one."""
    questions = [
        node
        for place in TUNED.find(tree)
        for node in ast.walk(place)
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == "backend_str"
    ]
    lists = [ast.unparse(node.comparators[0]) for node in questions]
    met = len(lists) == 1 and "'flashinfer_cutlass'" in lists[0]
    return [] if met else [f"{TUNED}: flashinfer_cutlass is not among the tuned backends"]


CODEMOD = Codemod(
    sites=(Site(TUNED, Edit(f"the comment `{BACKEND},`", uncomment)),),
    after=(is_listed, has(TUNED, BACKEND)),
)
