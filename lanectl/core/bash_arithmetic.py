"""The value of `$((…))` and `((…))`, where the script tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tree_sitter import Node

from lanectl.core.bash_state import State, first
from lanectl.core.bash_text import known

if TYPE_CHECKING:
    from lanectl.core.bash_words import WordReader

_ARITHMETIC: Final[dict[str, Callable[[int, int], int]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: int(a / b),
    "%": lambda a, b: a - b * int(a / b),
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "&&": lambda a, b: bool(a) and bool(b),
    "||": lambda a, b: bool(a) or bool(b),
}


def arithmetic(reader: WordReader, node: Node, state: State) -> int | None:
    """The value of an arithmetic expression; None where it cannot be told."""
    named = [c for c in node.children if c.is_named]
    if node.type in ("arithmetic_expansion", "parenthesized_expression", "compound_statement"):
        return arithmetic(reader, named[0], state) if len(named) == 1 else None
    if node.type == "binary_expression" and len(node.children) == 3:
        left = arithmetic(reader, node.children[0], state)
        right = arithmetic(reader, node.children[2], state)
        compute = _ARITHMETIC.get(node.children[1].type)
        if left is None or right is None or compute is None:
            return None
        return None if right == 0 and node.children[1].type in "/%" else int(compute(left, right))
    if node.type in ("number", "word", "simple_expansion", "expansion", "string"):
        text = known(reader.value(node, state))
    elif node.type == "variable_name":
        value = reader.lookup(reader.source[node.start_byte : node.end_byte], state, node)
        text = None if value is None else known(first(value)) or "0"
    else:
        return None
    text = (text or "").strip()
    if "=" in text or "++" in text or "--" in text:  # a variable that holds an assignment
        reader.notes.find("unread", node.start_point[0] + 1, text)
    is_number = text.isascii() and text.removeprefix("-").isdigit()
    has_base = text.removeprefix("-").startswith("0") and len(text.removeprefix("-")) > 1
    return int(text) if is_number and not has_base and len(text) < 18 else None
