"""Decide `[ … ]`, `[[ … ]]`, `(( … ))` and `case` patterns: True, False, or None for "unknown"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tree_sitter import Node

from lanectl.core.bash_arithmetic import arithmetic
from lanectl.core.bash_state import State
from lanectl.core.bash_text import Text, Word, flat, known, matches
from lanectl.core.bash_words import WordReader
from lanectl.core.command import MARKS

_COMPARE: Final = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}


def test_command(reader: WordReader, node: Node, state: State) -> bool | None:
    """A `[ … ]` or `[[ … ]]` node."""
    inner = node.children[1:-1]
    if len(inner) != 1:
        return None
    return _expression(reader, inner[0], state, double=node.children[0].type == "[[")


def arithmetic_command(reader: WordReader, node: Node, state: State) -> bool | None:
    """A `(( … ))` node."""
    number = arithmetic(reader, node, state)
    return None if number is None else number != 0


def test_words(words: Sequence[Word]) -> bool | None:
    """The words after `test`."""
    texts = [word.text for word in words]
    if texts and texts[0] == "!":
        inner = test_words(words[1:])
        return None if inner is None else not inner
    if not texts:
        return False
    if len(texts) == 1:
        return _nonempty(words[0].pieces)
    if len(texts) == 2:
        return _unary(texts[0], words[1].pieces)
    if len(texts) == 3:
        return _binary(texts[1], words[0].pieces, known(words[2].pieces), pattern=False)
    return None


def pattern_matches(reader: WordReader, node: Node, value: Text, state: State) -> bool | None:
    """Does the value match this word as a pattern (its quoted parts stand for themselves)?"""
    text, pattern = known(value), known(reader.value(node, state))
    if reader.source[node.start_byte : node.end_byte] == "*":
        return True
    if text is None or pattern is None:
        return None
    return text == pattern if reader.is_quoted(node) else matches(pattern, text)


def _expression(reader: WordReader, node: Node, state: State, double: bool) -> bool | None:
    children = node.children
    if node.type == "parenthesized_expression" and len(children) == 3:
        return _expression(reader, children[1], state, double)
    if node.type == "unary_expression" and len(children) == 2:
        operator = reader.source[children[0].start_byte : children[0].end_byte]
        if operator == "!":
            inner = _expression(reader, children[1], state, double)
            return None if inner is None else not inner
        if operator == "-v":
            name = known(reader.value(children[1], state))
            return True if name in state.vars and state.vars[name] is not None else None
        return _unary(operator, reader.value(children[1], state)) if _is_word(children[1]) else None
    if node.type == "binary_expression" and len(children) == 3:
        operator = reader.source[children[1].start_byte : children[1].end_byte]
        if operator in ("&&", "||", "-a", "-o"):
            return _both(
                _expression(reader, children[0], state, double),
                _expression(reader, children[2], state, double),
                either=operator in ("||", "-o"),
            )
        if not (_is_word(children[0]) and _is_word(children[2])):
            return None
        pattern = double and not reader.is_quoted(children[2])
        left, right = reader.value(children[0], state), known(reader.value(children[2], state))
        return _binary(operator, left, right, pattern)
    return _nonempty(reader.value(node, state)) if _is_word(node) else None


def _is_word(node: Node) -> bool:
    """Is this an operand, and no expression that the tree put together otherwise than bash does?"""
    return "expression" not in node.type and node.type not in ("ERROR", "negated_command")


def _both(one: bool | None, other: bool | None, either: bool) -> bool | None:
    if either in (one, other):
        return either
    return None if None in (one, other) else not either


def _nonempty(pieces: Text) -> bool | None:
    text = flat(pieces)
    if text and all(char in MARKS for char in text):
        return None
    return bool(text)


def _unary(operator: str, operand: Text) -> bool | None:
    if operator not in ("-z", "-n"):
        return None  # -f, -d, -x …: depends on the machine
    has = _nonempty(operand)
    return has if has is None or operator == "-n" else not has


def _binary(operator: str, left: Text, right: str | None, pattern: bool) -> bool | None:
    text = known(left)
    if text is None or right is None:
        return None
    if operator in ("=", "==", "!="):
        equal = matches(right, text) if pattern else text == right
        return equal if operator != "!=" else not equal
    if operator in _COMPARE:
        try:
            return bool(_COMPARE[operator](int(text, 10), int(right, 10)))
        except ValueError:
            return None
    return None
