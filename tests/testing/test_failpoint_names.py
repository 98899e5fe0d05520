"""The registry of failpoints and the product's code agree."""

from __future__ import annotations

import ast
from pathlib import Path

from spark_eoc.failpoints import FAILPOINTS

PACKAGE = Path(__file__).parent.parent.parent / "spark_eoc"


def test_product_code_names_every_failpoint_and_no_other():
    """A name in FAILPOINTS that no code hits would be tested by nothing."""
    named = {
        call.args[0].value
        for path in PACKAGE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "hit"
        and isinstance(call.args[0], ast.Constant)
    }
    assert named == set(FAILPOINTS)
