"""An abstract interpreter for launcher scripts: which servers does this text start, with which
words, and where does each byte of those words come from?

It walks the tree-sitter tree of one script. What cannot be known (programs' output, files, the
environment) stays a hole with its cause. A condition that cannot be decided is followed both ways,
each with a state of its own. Nothing is run and nothing is read besides the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Tree

from lanectl.core.bash_commands import CommandRunner
from lanectl.core.bash_doubts import doubts, side_effects
from lanectl.core.bash_state import Array, State, unknown
from lanectl.core.bash_tests import arithmetic_command, pattern_matches, test_command
from lanectl.core.bash_text import Hole, Text, Word, known
from lanectl.core.bash_words import line
from lanectl.core.command import WORDS

MAX_STATES: Final = 64
MAX_ROUNDS: Final = 32
MAX_STEPS: Final = 20_000
_MAX_NESTING: Final = 60


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def parse(source: str) -> Tree:
    """The tree of a source text held as latin-1."""
    return _parser().parse(source.encode("latin-1"))


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, in source order."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(reversed(current.children))


class Shell(CommandRunner):
    """Interprets one script. After `interpret`, `runs`, `notes` and `effects` say what it does."""

    def __init__(self, source: str, frame: Text | None = None, depth: int = 0) -> None:
        super().__init__(source, frame)
        self.tree = parse(source)
        self.depth = depth
        self.steps = 0
        self.conditions = 0

    def interpret(self, state: State | None = None) -> None:
        """Follow all paths, then look at the commands that none of them reached."""
        try:
            self.run_nodes([self.tree.root_node], [state or State()])
            self._find_unreached()
            for at, text in doubts(self.source, list(walk(self.tree.root_node))):
                self.notes.find("unread", at, text[:80])
        except RecursionError:
            self.notes.find("too-deep", 1)

    def run_text(self, pieces: Text, state: State, line: int) -> None:
        text = known(pieces)
        if self.depth >= 3 or text is None:
            return
        # Places inside text inside text lead nowhere: such a command is shown, not edited.
        inner = Shell(text, () if self.depth else pieces, self.depth + 1)
        inner.base_line = self.base_line or line
        inner.around = list(self.around)
        inner.rounds = [*self.rounds, line]
        inner.interpret(state)
        self.runs += inner.runs
        for code, _, detail in inner.notes.found:
            self.notes.find(code, line, detail)

    def run_nodes(self, nodes: Sequence[Node], states: list[State]) -> list[State]:
        for node in nodes:
            going = [s for s in states if s.flow is None]
            states = [s for s in states if s.flow is not None]
            for state in going:
                states += self._statement(node, state)
            states = self._merge(states)
            if all(s.flow is not None for s in states):
                break
        return states

    def _merge(self, states: list[State]) -> list[State]:
        """Drop states that will go on alike; stop following when there are too many."""
        kept: list[State] = []
        for state in states:
            if state not in kept:
                kept.append(state)
        if len(kept) > MAX_STATES:
            self.notes.find("too-many-paths", 1)
            del kept[MAX_STATES:]
        return kept

    def _statement(self, node: Node, state: State) -> list[State]:
        self.steps += 1
        if self.steps > MAX_STEPS or len(self.rounds) > _MAX_NESTING:
            self.notes.find("too-many-paths", 1)
            return []
        method = _STATEMENTS.get(node.type)
        if method is None:
            if node.type == "ERROR" or node.is_named:
                self.notes.find("unread", line(node), node.type)
            return [state]
        after = method(self, node, state)
        if "loop" in self.around and node.type in _MAY_FAIL:
            self.decided += [one.status for one in after]
        if not self.conditions and node.type in _MAY_FAIL:
            for one in after:
                if one.status is False and one.errexit and one.flow is None:
                    one.flow = "exit"
        return after

    def _block(self, node: Node, state: State) -> list[State]:
        """`program`, `{ … }`, `do … done`: statements one after the other."""
        if node.children and node.children[0].type == "((":
            state.status = arithmetic_command(self.reader, node, state)
            if side_effects(self.text(node)):
                self._forget(node, state, "arithmetic sets it")
            return [state]
        return self._list(node.children, [state])

    def _list(self, children: Sequence[Node], states: list[State]) -> list[State]:
        for at, child in enumerate(children):
            if not child.is_named or child.type in ("comment", "heredoc_body"):
                continue
            if at + 1 < len(children) and children[at + 1].type == "&":
                self.around.append("background")
                self.run_nodes([child], [s.fork() for s in states if s.flow is None])
                self.around.pop()
                for state in states:
                    state.status = True
            else:
                states = self.run_nodes([child], states)
        return states

    def _command(self, node: Node, state: State) -> list[State]:
        return self.command(node, (), None, state)

    def _redirected(self, node: Node, state: State) -> list[State]:
        redirects = node.children_by_field_name("redirect")
        body = node.child_by_field_name("body")
        here: Text | None = None
        extra: list[Node] = []
        for redirect in redirects:
            extra += self.redirect_words(redirect)
            if redirect.type == "heredoc_redirect":
                here = self.heredoc(redirect, state)
        if body is None:
            return [state]
        piped = any(c.type == "pipeline" for r in redirects for c in r.children)
        chained = [r for r in redirects if r.child_by_field_name("right") is not None]
        if piped:
            self.around.append("pipeline")
        self.conditions += bool(chained)
        if body.type == "command":
            states = self.command(body, extra, here, state)
        else:
            if extra:
                self.notes.find("unread", line(extra[0]), "words after a redirection")
            states = self.run_nodes([body], [state])
        self.conditions -= bool(chained)
        if piped:
            self.around.pop()
        for redirect in chained:
            right = redirect.child_by_field_name("right")
            operator = redirect.child_by_field_name("operator")
            if right is not None and operator is not None:
                states = self._chain(states, operator.type, right)
        return states

    def _chain(self, states: list[State], operator: str, right: Node) -> list[State]:
        """`… && right`, `… || right`."""
        wanted = operator == "&&"
        done = [s for s in states if s.flow is not None or s.status is (not wanted)]
        going = [s for s in states if s.flow is None and s.status is not (not wanted)]
        for state in going:
            if state.status is None:
                skipped = state.fork()
                skipped.status = not wanted
                done.append(skipped)
        return self._merge(done + self.run_nodes([right], going))

    def _and_or(self, node: Node, state: State) -> list[State]:
        left, operator, right = node.children[0], node.children[1].type, node.children[-1]
        self.conditions += 1
        states = self.run_nodes([left], [state])
        self.conditions -= 1
        return self._chain(states, operator, right)

    def _pipeline(self, node: Node, state: State) -> list[State]:
        self.around.append("pipeline")
        for child in node.children:
            if child.is_named:
                self.run_nodes([child], [state.fork()])
        self.around.pop()
        state.status = None
        return [state]

    def _subshell(self, node: Node, state: State) -> list[State]:
        ended = self._list(node.children, [state.fork()])
        statuses = {s.status for s in ended}
        state.status = statuses.pop() if len(statuses) == 1 else None
        return [state]

    def _negated(self, node: Node, state: State) -> list[State]:
        self.conditions += 1
        states = self.run_nodes(node.children[1:], [state])
        self.conditions -= 1
        for one in states:
            one.status = None if one.status is None else not one.status
        return states

    def _test(self, node: Node, state: State) -> list[State]:
        state.status = test_command(self.reader, node, state)
        return [state]

    def _if(self, node: Node, state: State) -> list[State]:
        done: list[State] = []
        undecided = [state]
        branch = node
        rest = list(node.children)
        while True:
            then = next(i for i, c in enumerate(rest) if c.type == "then")
            later = [c for c in rest if c.type in ("elif_clause", "else_clause")]
            body = [c for c in rest[then + 1 :] if c not in later]
            yes, undecided, stopped = self._decide(rest[:then], undecided)
            done += stopped + self._list(body, yes)
            if branch is node:
                clauses = later
            if not clauses or not undecided:
                break
            branch = clauses.pop(0)
            rest = list(branch.children)
            if branch.type == "else_clause":
                done += self._list(rest[1:], undecided)
                undecided = []
                break
        for one in undecided:
            one.status = True
        return self._merge(done + undecided)

    def _decide(
        self, nodes: Sequence[Node], states: list[State]
    ) -> tuple[list[State], list[State], list[State]]:
        """Run a condition: the states in which it holds, in which it does not, and which ended."""
        self.conditions += 1
        after = self._list(nodes, states)
        self.conditions -= 1
        stopped = [s for s in after if s.flow is not None]
        yes: list[State] = []
        no: list[State] = []
        for state in after:
            if state.flow is not None:
                continue
            if state.status is None:
                no.append(state.fork())
                yes.append(state)
            else:
                (yes if state.status else no).append(state)
        return yes, no, stopped

    def _case(self, node: Node, state: State) -> list[State]:
        subject = node.child_by_field_name("value")
        value = self.reader.value(subject, state) if subject is not None else ()
        done: list[State] = []
        going: State | None = state
        for item in (c for c in node.children if c.type == "case_item"):
            if going is None:
                break
            patterns = item.children_by_field_name("value")
            body = [c for c in item.children if c.is_named and c not in patterns]
            results = [pattern_matches(self.reader, p, value, going) for p in patterns]
            if True not in results and None not in results:
                continue
            taken = going if True in results else going.fork()
            going = None if True in results else going
            done += self._list(body, [taken])
            if any(c.type in (";&", ";;&") for c in item.children):
                self.notes.find("unread", line(item), ";&")
        if going is not None:
            going.status = True
            done.append(going)
        return self._merge(done)

    def _for(self, node: Node, state: State) -> list[State]:
        body = node.child_by_field_name("body")
        variable = node.child_by_field_name("variable")
        if body is None or variable is None or node.children[0].type == "select":
            return self._any_rounds(node, [body] if body else [], state)
        found: list[Word] = []
        values = node.children_by_field_name("value")
        for value in values:
            found += self.reader.argument(value, state)
        if not values and not any(c.type == "in" for c in node.children):
            found = list(state.params)
        name = self.text(variable)
        if len(found) > MAX_ROUNDS or any(WORDS in word.text for word in found):
            return self._any_rounds(node, [body], state)
        self.around.append("loop")
        states, left = [state], []
        for number, word in enumerate(found):
            for one in states:
                one.vars[name] = word.pieces
            self.rounds.append(number)
            after = self.run_nodes([body], states)
            self.rounds.pop()
            states, ended = _after_round(after)
            left += ended
        self.around.pop()
        return self._merge(left + states)

    def _while(self, node: Node, state: State) -> list[State]:
        body = node.child_by_field_name("body")
        condition = node.children_by_field_name("condition")
        if body is None:
            return [state]
        until = node.children[0].type == "until"
        self.around.append("loop")
        states, left = [state], []
        for _ in range(MAX_ROUNDS):
            if not states:
                break
            if len(states) > 1:
                left += [s for one in states for s in self._any_rounds(node, [body], one)]
                states = []
                break
            before = states[0].fork()
            yes, no, stopped = self._decide(condition, states)
            if until:
                yes, no = no, yes
            if yes and no:  # nobody can know how often
                left += stopped + no
                left += [s for one in yes for s in self._any_rounds(node, [body], one)]
                states = []
                break
            left += no + stopped
            states, ended = _after_round(self.run_nodes([body], yes))
            left += ended
            if any(_alike(one, before) for one in states):
                states = []  # it goes round for ever
        for one in states:
            left += self._any_rounds(node, [body], one)
        self.around.pop()
        return self._merge(left)

    def _c_for(self, node: Node, state: State) -> list[State]:
        body = node.child_by_field_name("body")
        self._forget(node, state, "a loop sets it")
        return self._any_rounds(node, [body] if body else [], state)

    def _any_rounds(self, node: Node, body: Sequence[Node], state: State) -> list[State]:
        """A loop that goes round an unknown number of times: what it sets is unknown."""
        none = state.fork()
        self._forget(node, state, "a loop sets it")
        self.around.append("loop")
        after = self.run_nodes(body, [state])
        self.around.pop()
        going, ended = _after_round(after)
        return self._merge([none, *going, *ended])

    def _forget(self, node: Node, state: State, cause: str) -> None:
        """Make unknown what a subtree, and the functions it calls, may set."""
        pending, seen = [node], set[str]()
        while pending:
            for inner in walk(pending.pop()):
                if inner.type == "command":
                    name = self.text(inner).split(" ", 1)[0]
                    if name in state.functions and name not in seen:
                        seen.add(name)
                        pending.append(state.functions[name])
                    words = self.text(inner).split()
                    names = words[1:] if name in ("read", "mapfile", "readarray", "getopts") else []
                    if name == "shift" or words[:2] == ["set", "--"]:
                        hole = Hole("$@", cause, line(inner), "words")
                        state.params = (Word((hole,)),)
                elif inner.type in ("variable_assignment", "for_statement", "postfix_expression"):
                    names = [self.text(c) for c in inner.children[:2]]
                elif inner.type == "arithmetic_expansion" or any(
                    c.type == "((" for c in inner.children
                ):
                    names = side_effects(self.text(inner).partition("))")[0])
                else:
                    continue
                for each in names:
                    each = each.split("[", 1)[0]
                    if not each.isidentifier():
                        continue
                    is_list = "=(" in self.text(inner) or isinstance(state.vars.get(each), Array)
                    hole = Hole("$" + each, f"{each}: {cause}", line(inner), "words")
                    lost = unknown(f"{each}: {cause}", line(inner), "$" + each)
                    state.vars[each] = Array((Word((hole,)),)) if is_list else lost

    def _assign(self, node: Node, state: State) -> list[State]:
        nodes = [node] if node.type == "variable_assignment" else node.children
        self.assignments([n for n in nodes if n.type == "variable_assignment"], state)
        return [state]

    def _declare(self, node: Node, state: State) -> list[State]:
        self.declaration(node, state)
        return [state]

    def _unset(self, node: Node, state: State) -> list[State]:
        for child in node.children[1:]:
            name = self.text(child)
            if child.type == "variable_name" or name.isidentifier():
                state.vars[name] = None
            elif not name.startswith("-"):
                self._fog(state, "unset of a computed name", line(child))
        return [state]

    def _function(self, node: Node, state: State) -> list[State]:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            state.functions = {**state.functions, self.text(name): body}
        state.status = True
        return [state]

    def _find_unreached(self) -> None:
        """Servers that no path starts: functions never called, arms never taken."""
        for node in walk(self.tree.root_node):
            if node.type != "command" or node.start_byte in self.visited:
                continue
            source = self.text(node)
            if "vllm" not in source and "serve" not in source:
                continue
            probe = Shell(source, (), depth=3)
            probe.around = ["unreached"]
            probe.base_line = self.base_line or line(node)
            probe.rounds = [node.start_byte]
            probe.run_nodes([probe.tree.root_node], [State(fog=("the caller", line(node)))])
            self.runs += [replace(run, reached=False) for run in probe.runs]


def _alike(one: State, other: State) -> bool:
    """Alike apart from the last command's status."""
    status, one.status = one.status, other.status
    alike = one == other
    one.status = status
    return alike


def _after_round(states: list[State]) -> tuple[list[State], list[State]]:
    """After a loop's body: the states that go on with the next round, and those that left."""
    going: list[State] = []
    left: list[State] = []
    for state in states:
        if state.flow == "continue":
            state.flow = None
        if state.flow is None:
            going.append(state)
        else:
            if state.flow == "break":
                state.flow = None
            left.append(state)
    return going, left


_STATEMENTS: Final = {
    "program": Shell._block,
    "compound_statement": Shell._block,
    "do_group": Shell._block,
    "command": Shell._command,
    "redirected_statement": Shell._redirected,
    "list": Shell._and_or,
    "pipeline": Shell._pipeline,
    "subshell": Shell._subshell,
    "negated_command": Shell._negated,
    "test_command": Shell._test,
    "if_statement": Shell._if,
    "case_statement": Shell._case,
    "for_statement": Shell._for,
    "c_style_for_statement": Shell._c_for,
    "while_statement": Shell._while,
    "variable_assignment": Shell._assign,
    "variable_assignments": Shell._assign,
    "declaration_command": Shell._declare,
    "unset_command": Shell._unset,
    "function_definition": Shell._function,
}
_MAY_FAIL: Final = frozenset(("command", "test_command", "compound_statement", "subshell"))
