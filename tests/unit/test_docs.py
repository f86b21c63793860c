"""The documents say what the code does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from lanectl.cli.main import COMMANDS
from lanectl.core.switch import SWITCH, Outcome, Phase

ROOT = Path(__file__).resolve().parents[2]


def test_reference_and_schemas_are_generated_from_the_code() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages = module.pages()
    assert [path.name for path, text in pages.items() if path.read_text() != text] == []
    assert set((ROOT / "docs" / "schemas").iterdir()) <= set(pages), "an old schema is left"


def test_the_table_in_the_document_is_the_table_in_the_code() -> None:
    text = (ROOT / "docs" / "switch.md").read_text()
    rows = re.findall(r"^\| (\w+): [^|]* \| ([\w*-]+) \| ([\w-]+) \| ([\w-]+)[^|]*\|$", text, re.M)
    told = {
        (Phase(phase), outcome): Phase(end.strip("*"))
        for phase, *ends in rows
        if phase != "phase"
        for outcome, end in zip(Outcome, ends, strict=True)
    }
    assert told == dict(SWITCH)


PAGES = ["README.md", "docs/guide.md", "docs/runbook.md", "docs/switch.md"]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"(?:^    |[`$] ?|^\$ )lanectl ([a-z]+)", text, re.M))
    assert named
    assert named <= set(COMMANDS)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []
