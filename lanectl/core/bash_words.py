"""Evaluate bash words: quotes, escapes, `$x`, `${x…}`, arrays, `$((…))`, with provenance.

tree-sitter says where expansions, strings and words are; the text between them is read byte by byte
here, because the tree drops what bash keeps (a newline inside a string) and keeps what bash drops
(a backslash and newline inside a word).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tree_sitter import Node

from lanectl.core.bash_arithmetic import arithmetic
from lanectl.core.bash_doubts import side_effects
from lanectl.core.bash_state import ALWAYS_SET, Array, Notes, Place, State, Value, first, unknown
from lanectl.core.bash_text import (
    BLANKS,
    MAX_PIECES,
    Break,
    Context,
    Hole,
    Lit,
    Mode,
    Stream,
    Text,
    Word,
    cut,
    expanded,
    flat,
    known,
    made,
    quoted,
    trim,
    words,
)
from lanectl.core.command import MARKS, PLAIN, WORDS

Capture = Callable[[Node, State], Text]
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f"}
_ENDS_WORD: Final = " \t\n;&|<>()`\"'"
_AFTER_DOLLAR: Final = frozenset("{(@*#?$!-_0123456789") | frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
_NAMES: Final = ("variable_name", "special_variable_name", "subscript")


class WordReader:
    """Evaluates words of one source text. `capture` gives the output of a command substitution."""

    def __init__(self, source: str, notes: Notes, capture: Capture) -> None:
        self.source = source
        self.notes = notes
        self.capture = capture

    def argument(self, node: Node, state: State) -> list[Word]:
        """The words that one argument becomes: none, one or several."""
        return self.split(self.stream(node, state), (node.start_byte, node.end_byte), state)

    def split(self, stream: Stream, outer: tuple[int, int], state: State) -> list[Word]:
        """The words that a stream becomes under the path's IFS."""
        if "IFS" not in state.vars:
            return words(stream, outer)
        blanks = known(first(state.vars["IFS"] or made(BLANKS)))
        if blanks is None or blanks.strip(BLANKS):
            stream = [
                Hole(p.text, "IFS decides how it is split", 0, "words")
                if isinstance(p, Lit) and p.mode == "expanded" and p.text
                else p
                for p in stream
            ]
        return words(stream, outer, blanks or "")

    def value(self, node: Node, state: State) -> Text:
        """What a word is worth where bash does not split: after `=`, in `case`, in `[[ ]]`."""
        result: list[Lit | Hole] = []
        for piece in self.stream(node, state):
            if isinstance(piece, Break):
                if result:
                    result += made(" ")
            else:
                result.append(piece)
        if len(result) > MAX_PIECES:
            return unknown("the value is too long", line(node), self._text(node))
        return quoted(tuple(p for p in result if isinstance(p, Hole) or p.text))

    def is_quoted(self, node: Node) -> bool:
        """Is no part of this word open to pattern matching?"""
        return node.type in ("string", "raw_string", "ansi_c_string")

    def stream(self, node: Node, state: State, in_quotes: bool = False) -> Stream:
        kind = node.type
        start, end = node.start_byte, node.end_byte
        if kind == "string":
            return self._string(node, state)
        if kind == "raw_string":
            return [Lit(self.source[start + 1 : end - 1], start + 1, end - 1, "raw")]
        if kind == "ansi_c_string":
            return self._ansi(start + 2, end - 1)
        if kind == "translated_string":
            return self._string(node.children[-1], state)
        if kind == "simple_expansion":
            return self._variable(node, self._text(node)[1:], state, in_quotes)
        if kind == "expansion":
            return self._expansion(node, state, in_quotes)
        if kind == "command_substitution":
            return self._emit(self.capture(node, state), in_quotes)
        if kind == "arithmetic_expansion":
            number = arithmetic(self, node, state)
            for name in side_effects(self._text(node)):
                number = None
                state.vars[name] = unknown("arithmetic sets it", line(node), "$" + name)
            if number is not None:
                return list(made(str(number)))
            return [
                Hole(self._text(node), "it is computed when the script runs", line(node), "plain")
            ]
        if kind == "process_substitution":
            return [Hole(self._text(node), "its name is made up at run time", line(node), "plain")]
        if kind in ("brace_expression", "ERROR"):
            return [Hole(self._text(node), "lanectl cannot read this", line(node), "words")]
        inner = [child for child in node.children if child.is_named and child.type in _EXPANDED]
        if kind in ("word", "number", "concatenation") and not in_quotes:
            self._doubt(start, end, inner, _ENDS_WORD)
        return self.span(start, end, inner, state, in_quotes)

    def span(
        self,
        start: int,
        end: int,
        children: Sequence[Node],
        state: State,
        in_quotes: bool = False,
        context: Context | None = None,
        mode: Mode = "literal",
    ) -> Stream:
        """The text of [start, end), whose expansions are `children`."""
        result: Stream = []
        at = start
        for child in children:
            result += self._plain(at, child.start_byte, in_quotes, context, mode)
            part = self.stream(child, state, in_quotes)
            if context is not None:  # inside ${…}: not a place of its own
                part = [
                    p._replace(context=context)
                    if isinstance(p, Lit) and p.start >= start and p.end <= end
                    else p
                    for p in part
                ]
            result += part
            at = child.end_byte
        return result + self._plain(at, end, in_quotes, context, mode)

    def _plain(
        self, start: int, end: int, in_quotes: bool, context: Context | None, mode: Mode
    ) -> Stream:
        """Literal text: take the escapes out."""
        result: Stream = []
        own: Context = context or ("dq" if in_quotes else "bare")
        run = at = start
        how: Mode = "quoted" if in_quotes else mode
        escaped = "$`\\\n" if context == "heredoc" else '$`"\\\n'

        def flush(stop: int) -> None:
            if run < stop:
                result.append(Lit(self.source[run:stop], run, stop, own, how))

        if not in_quotes and self.source[start:end].startswith("~") and mode == "literal":
            stop = start
            while stop < end and self.source[stop] not in "/:":
                stop += 1
            cause = "~ is a home directory"
            result.append(Hole(self.source[start:stop], cause, 0, "plain"))
            run = at = stop
        while at < end:
            char, after = self.source[at], self.source[at + 1 : at + 2]
            if char == "\\" and at + 1 < end and (not in_quotes or after in escaped):
                flush(at)
                if after != "\n":
                    result.append(Lit(after, at, at + 2, own, "quoted"))
                at += 2
                run = at
            elif char in "'\"" and not in_quotes and self.source.find(char, at + 1, end) > 0:
                flush(at)
                stop = self.source.find(char, at + 1, end)
                result.append(Lit(self.source[at + 1 : stop], at + 1, stop, own, "quoted"))
                run = at = stop + 1
            else:
                at += 1
        flush(end)
        return result

    def _string(self, node: Node, state: State) -> Stream:
        inner = [c for c in node.children if c.type in _EXPANDED]
        start, end = node.start_byte + 1, node.end_byte - 1
        if node.child_count and node.children[0].type == '"':
            # The closing quote's node begins at the blanks before it; one that is missing is empty.
            closing = node.children[-1]
            end = max(closing.start_byte, closing.end_byte - 1)
            start = node.children[0].end_byte
        if len(inner) == 1 and (inner[0].start_byte, inner[0].end_byte) == (start, end):
            alone = self.stream(inner[0], state, in_quotes=True)
            if not alone and not self._is_list(inner[0]):
                return [Lit("", start, start, "dq")]
            return alone if alone else []
        self._doubt(start, end, inner, '"`')
        result: Stream = [Lit("", start, start, "dq")]
        for piece in self.span(start, end, inner, state, in_quotes=True):
            if isinstance(piece, Break):
                if not any(isinstance(p, Hole) or (isinstance(p, Lit) and p.text) for p in result):
                    continue  # "x${a[@]}": what stands before joins the first element
                piece = Break(None)
            result.append(piece)
        return result

    def _doubt(self, start: int, end: int, children: Sequence[Node], never: str) -> None:
        """Note text that cannot be where the tree has it: then the tree misread the script."""
        inside = {at for c in children for at in range(c.start_byte, c.end_byte)}
        at = start
        while at < end:
            char = self.source[at]
            if at not in inside:
                starts = char == "$" and self.source[at + 1 : at + 2] in _AFTER_DOLLAR
                if char in never or (starts and at + 1 < end):
                    self.notes.find("unread", self.source.count("\n", 0, at) + 1, char)
                    return
                at += char == "\\"
            at += 1

    def _is_list(self, node: Node) -> bool:
        """Does this expansion, in double quotes, become no word at all when it is empty?"""
        text = self._text(node)
        return text == "$@" or "[@]" in text or text.startswith("${@")

    def _ansi(self, start: int, end: int) -> Stream:
        result: Stream = [Lit("", start, start, "ansi")]
        at = run = start
        while at < end:
            if self.source[at] != "\\":
                if self.source[at] == "'":
                    self.notes.find("unread", self.source.count("\n", 0, at) + 1, "$'")
                at += 1
                continue
            if run < at:
                result.append(Lit(self.source[run:at], run, at, "ansi"))
            text, stop = self._escape(at + 1, end)
            result.append(Lit(text, at, stop, "ansi"))
            at = run = stop
        if run < end:
            result.append(Lit(self.source[run:end], run, end, "ansi"))
        return result

    def _escape(self, at: int, end: int) -> tuple[str, int]:
        """The character that `\\…` in $'…' stands for, and where it ends."""
        char = self.source[at]
        digits = {"x": (2, 16), "u": (4, 16), "U": (8, 16)}.get(char)
        begin = at + 1
        if char in "01234567":
            digits, begin = (3, 8), at
        if digits is None:
            return _ESCAPES.get(char, char), at + 1
        allowed = "0123456789abcdefABCDEF" if digits[1] == 16 else "01234567"
        stop = begin
        while stop < min(end, begin + digits[0]) and self.source[stop] in allowed:
            stop += 1
        if stop == begin:
            return "\\" + char, stop
        number = int(self.source[begin:stop], digits[1])
        if char in "uU" and number < 0x110000 and not 0xD800 <= number < 0xE000:
            return chr(number).encode().decode("latin-1"), stop
        return chr(number & 0xFF), stop

    def _variable(self, node: Node, name: str, state: State, in_quotes: bool) -> Stream:
        if name in ("@", "*"):
            if state.outer_args:
                self.notes.find("script-arguments", line(node), name)
            return self._items(state.params, state, in_quotes, joined=name == "*")
        if name[:1].isdigit() and len(name) > 1:  # `$10` is `$1` and a 0
            rest = Lit(name[1:], node.start_byte + 2, node.end_byte, "bare", "quoted")
            return [*self._variable(node, name[0], state, in_quotes), rest]
        value = self.lookup(name, state, node)
        if value is None:
            value = self._missing(name, node, state)
        return self._emit(first(value), in_quotes)

    def _missing(self, name: str, node: Node, state: State) -> Text:
        """A variable that nothing in the script sets, read without a default."""
        if name in state.vars:
            return ()  # unset by the script itself
        if state.nounset:
            self.notes.find("unset-under-set-u", line(node), name)
        what = f"argument {name}" if name.isdigit() else name
        cause = f"{what} comes from outside: nothing in the script sets it"
        return unknown(cause, line(node), self._text(node))

    def lookup(self, name: str, state: State, node: Node) -> Value | None:
        """A variable's value; None where the script leaves it unset."""
        if name.isdigit() and int(name):
            at = int(name) - 1
            if at < len(state.params) and not any(WORDS in w.text for w in state.params):
                return state.params[at].pieces
            if any(WORDS in w.text for w in state.params):
                return unknown("the arguments are unknown", line(node), self._text(node))
            return () if state.in_function else None
        if name == "#":
            if any(WORDS in w.text for w in state.params):
                return unknown("the arguments are unknown", line(node), self._text(node))
            return made(str(len(state.params)))
        if name in state.vars:
            value = state.vars[name]
            if value is not None:
                self.notes.reads.setdefault(name, []).append(first(value))
            return value
        if name in ALWAYS_SET:
            cause = f"{name} is known only when the script runs"
            return (Hole(self._text(node), cause, line(node), "plain"),)
        if state.fog is not None:
            return unknown(f"{state.fog[0]} may set {name}", state.fog[1], self._text(node))
        return None

    def _emit(self, pieces: Text, in_quotes: bool) -> Stream:
        return list(quoted(pieces) if in_quotes else expanded(pieces))

    def _joiner(self, state: State) -> Text:
        """What stands between the elements of `"${a[*]}"`: the first character of IFS."""
        blanks = state.vars.get("IFS") or made(" ")
        text = known(first(blanks))
        return made(text[:1]) if text is not None else unknown("IFS is unknown", 0)

    def _items(self, items: Sequence[Word], state: State, in_quotes: bool, joined: bool) -> Stream:
        result: Stream = []
        for number, item in enumerate(items):
            if joined:
                result += self._joiner(state) if number else ()
            else:
                result.append(Break(item.spans[0] if item.spans and in_quotes else None))
            is_list = any(isinstance(p, Hole) and p.kind == "words" for p in item.pieces)
            result += item.pieces if is_list else self._emit(item.pieces, in_quotes)
            if in_quotes and not item.pieces:
                result.append(Lit("", -1, -1, "made"))
        if items and not joined:
            result.append(Break(None))
        return (
            result
            if in_quotes or not joined
            else list(expanded(tuple(p for p in result if not isinstance(p, Break))))
        )

    def _expansion(self, node: Node, state: State, in_quotes: bool) -> Stream:
        children = node.children[1:-1]
        prefix = ""
        if len(children) > 1 and children[0].type in ("#", "!") and children[1].type in _NAMES:
            prefix, children = children[0].type, children[1:]
        if not children or children[0].type not in _NAMES:
            return self._give_up(node)
        name_node, rest = children[0], children[1:]
        name, index = self._text(name_node), None
        if name_node.type == "subscript":
            index = self._text(name_node.children[2]) if name_node.child_count > 3 else None
            name = self._text(name_node.children[0])
            if index is None:
                return self._give_up(node)
        if prefix:
            return self._prefixed(prefix, node, name, index, rest, state)
        operator, args = "", rest
        if rest and not (rest[0].is_named and rest[0].type not in ("operator",)):
            operator, args = rest[0].type, rest[1:]
        elif rest:
            return self._give_up(node)
        if operator and operator[0] in ":-=?+" and operator != ":":
            return self._conditional(node, name, index, operator, args, state, in_quotes)
        value = self._indexed(name, index, state, node)
        if value is None:
            value = self._missing(name, node, state) if index not in ("@", "*") else Array(())
        if isinstance(value, Array) and not operator:
            return self._items(value.items, state, in_quotes, joined=index == "*")
        if isinstance(value, Array):
            return self._give_up(node)
        if operator:
            value = self._changed(node, value, operator, rest, state)
        return self._emit(value, in_quotes)

    def _give_up(self, node: Node) -> Stream:
        return [Hole(self._text(node), "lanectl does not compute this", line(node), "words")]

    def _indexed(self, name: str, index: str | None, state: State, node: Node) -> Value | None:
        """`${name}`, `${name[@]}`, `${name[3]}`."""
        if name in ("@", "*"):
            return Array(state.params)
        value = self.lookup(name, state, node)
        if value is None or index is None:
            return None if value is None else first(value)
        if index in ("@", "*"):
            return value if isinstance(value, Array) else Array((Word(value),))
        items = value.items if isinstance(value, Array) else (Word(value),)
        if (
            index.isdigit()
            and int(index) < len(items)
            and WORDS not in "".join(w.text for w in items)
        ):
            return items[int(index)].pieces
        return unknown("the element is not known", line(node), self._text(node))

    def _prefixed(
        self,
        prefix: str,
        node: Node,
        name: str,
        index: str | None,
        rest: Sequence[Node],
        state: State,
    ) -> Stream:
        """`${#name}`, `${!name}`."""
        if rest:
            return self._give_up(node)
        value = self._indexed(name, index, state, node)
        if prefix == "#" and isinstance(value, Array):
            is_open = any(WORDS in item.text for item in value.items)
            return self._give_up(node) if is_open else list(made(str(len(value.items))))
        text = known(first(value)) if value is not None else None
        if prefix == "#" and text is not None:
            return list(made(str(len(text))))
        if prefix == "!" and text is not None and text.isidentifier():
            target = self.lookup(text, state, node)
            if target is not None:
                return self._emit(first(target), False)
        return self._give_up(node)

    def _conditional(
        self,
        node: Node,
        name: str,
        index: str | None,
        operator: str,
        args: Sequence[Node],
        state: State,
        in_quotes: bool,
    ) -> Stream:
        """`${x:-…}`, `${x:=…}`, `${x:?…}`, `${x:+…}` and the forms without a colon.

        A variable that the script leaves to the environment counts as unset; the note of it
        becomes a finding.
        """
        value = self._indexed(name, index, state, node)
        begin = node.children[-1].start_byte
        for child in node.children[1:]:
            if child.type == operator:
                begin = child.end_byte
                break
        stop = node.end_byte - 1
        text = flat(first(value)) if value is not None and not isinstance(value, Array) else ""
        if isinstance(value, Array):
            text = "".join(item.text for item in value.items) or ("x" if value.items else "")
        is_open = bool(text) and all(c in MARKS for c in text)
        has = value is not None and (bool(text) or ":" not in operator)
        if value is None and name not in state.vars:
            place = Place(begin, stop, in_quotes, line(node))
            self.notes.default(name, place)
        if operator[-1] == "+":
            if is_open and PLAIN not in text:
                return self._give_up(node)
            return self._alternative(begin, stop, args, state, in_quotes, "alt") if has else []
        if has and value is not None:
            if is_open and PLAIN not in text and operator[-1] != "?":
                return [
                    Hole(
                        self._text(node),
                        f"{name} is unknown",
                        line(node),
                        "word" if in_quotes else "words",
                    )
                ]
            if isinstance(value, Array):
                return self._items(value.items, state, in_quotes, joined=index == "*")
            return self._emit(value, in_quotes)
        if operator[-1] == "?":
            cause = f"{name} comes from outside: the script stops without it"
            return self._emit(unknown(cause, line(node), self._text(node)), in_quotes)
        context: Context = "dq-default" if in_quotes else "default"
        result = self._alternative(begin, stop, args, state, in_quotes, context)
        pieces = tuple(p for p in result if not isinstance(p, Break))
        self.notes.reads.setdefault(name, []).append(pieces)
        if operator[-1] == "=":
            state.vars[name] = quoted(pieces)
        return result

    def _alternative(
        self,
        begin: int,
        stop: int,
        args: Sequence[Node],
        state: State,
        in_quotes: bool,
        context: Context,
    ) -> Stream:
        inner: list[Node] = []
        for arg in args:
            inner += (
                [arg] if arg.type in _EXPANDED else [c for c in arg.children if c.type in _EXPANDED]
            )
        inner = [n for n in inner if begin <= n.start_byte and n.end_byte <= stop]
        return self.span(begin, stop, inner, state, in_quotes, context, "expanded")

    def _changed(
        self, node: Node, value: Text, operator: str, rest: Sequence[Node], state: State
    ) -> Text:
        """`${x%%p}`, `${x/a/b}`, `${x:1:2}`, `${x^^}`."""
        text = known(value)
        source = self._text(node)
        lost = unknown("lanectl does not compute this", line(node), source)
        if text is None:
            return lost
        args = [known(self.value(n, state)) for n in rest if n.is_named]
        if any(a is None for a in args):
            return lost
        plain = [a for a in args if a is not None]
        if operator in ("#", "##", "%", "%%"):
            left = trim(value, operator, plain[0] if plain else "")
            return lost if left is None else left
        if operator == ":" and plain and all(a.strip().isdigit() for a in plain):
            begin = int(plain[0])
            return cut(value, begin, begin + int(plain[1]) if len(plain) > 1 else len(text))
        if operator in ("/", "//") and plain and not any(c in "*?[\\" for c in plain[0]):
            new = plain[1] if len(plain) > 1 else ""
            return made(text.replace(plain[0], new, -1 if operator == "//" else 1))
        if operator in ("^^", ",,") and not plain:
            return made(text.upper() if operator == "^^" else text.lower())
        return lost

    def _text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte]


_EXPANDED: Final = frozenset(
    (
        "string",
        "raw_string",
        "ansi_c_string",
        "translated_string",
        "simple_expansion",
        "expansion",
        "command_substitution",
        "arithmetic_expansion",
        "process_substitution",
        "brace_expression",
    )
)


def line(node: Node) -> int:
    return node.start_point[0] + 1
