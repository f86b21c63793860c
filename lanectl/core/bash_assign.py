"""Assignments of the abstract interpreter: `a=b`, `a+=(b c)`, `export`, `local`, `declare`."""

from __future__ import annotations

from collections.abc import Sequence

from tree_sitter import Node

from lanectl.core.bash_state import Array, Notes, Place, State, Value, first, unknown
from lanectl.core.bash_text import (
    MAX_PIECES,
    Hole,
    Stream,
    Text,
    Word,
    known,
    made,
)
from lanectl.core.bash_words import WordReader, line


class Assignments:
    """The script, its notes and its words, and what assignments do to a state."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.notes = Notes()
        self.reader = WordReader(source, self.notes, self.capture)
        self.locals: list[set[str]] = []

    def capture(self, node: Node, state: State) -> Text:
        """What `$(…)` puts out."""
        raise NotImplementedError

    def text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte]

    def assign(self, node: Node, state: State) -> tuple[str, Value]:
        """A `variable_assignment`; gives the name and the value, and does not store it."""
        name_node, value_node = node.children[0], node.children[-1]
        appends = node.children[1].type == "+=" if node.child_count > 1 else False
        index = None
        name = self.text(name_node)
        if name_node.type == "subscript":
            index, name = name, self.text(name_node.children[0])
        value: Value
        if node.child_count < 3:
            value = ()
        elif value_node.type == "array":
            value = self._array(value_node, state)
            start, end = value_node.start_byte, value_node.end_byte
            self.notes.assign(name, Place(start, end, False, line(node)))
        else:
            value = self.reader.value(value_node, state)
            own = any(f"{{{name}{op}" in self.text(value_node) for op in (":-", "-", ":=", "="))
            if not own and not appends:
                start, end = value_node.start_byte, value_node.end_byte
                self.notes.assign(name, Place(start, end, False, line(node)))
        old = state.vars.get(name, None)
        if index is not None:
            return name, Array((Word(self._open(f"{name} is filled element by element", node)),))
        if appends and old is None and name not in state.vars and state.fog is not None:
            old = unknown(f"{state.fog[0]} may set {name}", state.fog[1])
        if appends and old is None and name not in state.vars:
            self.notes.find("appends-to-nothing", line(node), name)
        if appends and isinstance(value, Array):
            before = () if old is None else old.items if isinstance(old, Array) else (Word(old),)
            value = Array(before + value.items)
        elif appends and isinstance(old, Array):
            head = Word(first(old) + first(value))
            value = Array((head, *old.items[1:]))
        elif appends and old is not None:
            value = first(old) + first(value)
        if isinstance(value, Array) and len(value.items) > MAX_PIECES:
            value = Array((Word(self._open("the array is too long", node)),))
        elif not isinstance(value, Array) and len(value) > MAX_PIECES:
            value = unknown("the value is too long", line(node), name)
        return name, value

    def _open(self, cause: str, node: Node) -> Text:
        return (Hole(self.text(node), cause, line(node), "words"),)

    def _array(self, node: Node, state: State) -> Array:
        items: list[Word] = []
        inner = [c for c in node.children[1:-1] if c.is_named and c.type != "comment"]
        for group in self._groups(inner, node.children[0].end_byte, node.children[-1].start_byte):
            if self.text(group[0]).startswith("["):
                return Array((Word(self._open("an array with keys", node)),))
            items += self._group_words(group, state)
        if len(items) > MAX_PIECES:
            return Array((Word(self._open("the array is too long", node)),))
        return Array(tuple(items))

    def _groups(self, nodes: Sequence[Node], start: int, stop: int) -> list[list[Node]]:
        """Words as bash sees them: nodes with nothing, or only a backslash and a newline, between
        them are one word. Anything else between words means that the tree misread the text."""
        groups: list[list[Node]] = []
        at = start
        for node in nodes:
            gap = self.source[at : node.start_byte]
            joined = gap.replace("\\\n", "")
            if groups and not joined:
                groups[-1].append(node)
            else:
                groups.append([node])
            if joined.strip(" \t\n") and not joined.lstrip(" \t\n").startswith("#"):
                self.notes.find("unread", node.start_point[0] + 1, joined.strip())
            at = max(at, node.end_byte)
        rest = self.source[at:stop].replace("\\\n", "").strip(" \t\n")
        if rest and not rest.startswith("#"):
            self.notes.find("unread", nodes[-1].end_point[0] + 1 if nodes else 1, rest)
        return groups

    def _group_words(self, group: Sequence[Node], state: State) -> list[Word]:
        if len(group) == 1:
            return self.reader.argument(group[0], state)
        stream: Stream = []
        for node in group:
            stream += self.reader.stream(node, state)
        return self.reader.split(stream, (group[0].start_byte, group[-1].end_byte), state)

    def assignments(self, nodes: Sequence[Node], state: State) -> None:
        for node in nodes:
            name, value = self.assign(node, state)
            state.vars[name] = value
        state.status = True

    def declaration(self, node: Node, state: State) -> None:
        """`export`, `local`, `declare`, `readonly`, `typeset`."""
        word = node.children[0].type
        flags = "".join(
            self.text(c) for c in node.children if c.type == "word" and self.text(c)[0] in "-+"
        )
        for child in node.children[1:]:
            name, value = self.text(child), None
            if child.type == "variable_assignment":
                name, value = self.assign(child, state)
            elif child.type in ("string", "concatenation", "raw_string", "word"):
                text = known(self.reader.value(child, state))
                if text is None:
                    self._fog(state, "an assignment with a computed name", line(child))
                if text is None or "=" not in text:
                    continue
                name, value = text.split("=", 1)[0], made(text.split("=", 1)[1])
            elif child.type != "variable_name":
                continue
            if "n" in flags or "A" in flags:
                value = Array((Word(self._open(f"{word} {flags} is not followed", node)),))
            elif "i" in flags or "u" in flags or "l" in flags:
                value = unknown(f"{word} {flags} changes the value", line(node), name)
            if self.locals and (word == "local" or (word != "export" and "g" not in flags)):
                self.locals[-1].add(name)
                state.vars.setdefault(name, None)
            if value is not None:
                state.vars[name] = value
            if word == "export" or "x" in flags:
                state.exported |= {name}
        state.status = True

    def _word_groups(self, items: Sequence[Node]) -> list[list[Node]]:
        groups: list[list[Node]] = []
        for node in items:
            gap = self.source[groups[-1][-1].end_byte : node.start_byte] if groups else " "
            if gap.replace("\\\n", ""):
                groups.append([node])
            else:
                groups[-1].append(node)
        return groups

    def _fog(self, state: State, cause: str, at: int) -> None:
        """Anything may have been set: what was known is not."""
        state.fog = (cause, at)
        for name, value in state.vars.items():
            lost = unknown(f"{cause} may set {name}", at, "$" + name)
            is_list = isinstance(value, Array)
            state.vars[name] = (
                Array((Word((Hole(name, f"{cause} may set {name}", at, "words"),)),))
                if is_list
                else lost
            )
