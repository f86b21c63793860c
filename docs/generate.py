"""Writes docs/reference.md from the models of lanectl.config, and docs/schemas/ from schemas.py.

`make docs`; tests hold both true.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

sys.path.insert(0, str(Path(__file__).parent))

import schemas

from lanectl.config import ConfigModel, LaneModel, ProfileModel, SmokeModel, StoreModel

TABLES: list[tuple[str, type[BaseModel]]] = [
    ("[store]", StoreModel),
    ("[lanes.NAME]", LaneModel),
    ("[lanes.NAME.smoke]", SmokeModel),
    ("[lanes.NAME.profiles.PROFILE]", ProfileModel),
]
HEAD = """\
# Configuration reference

Generated from the models in `lanectl/config.py` by `make docs`; do not edit.

One TOML file. Unknown keys, bad units and missing files are errors that name the key, the file and
the line. Times are seconds. Relative paths start at the folder of the file. Names of lanes and
profiles: `[A-Za-z0-9._-]+`; the profile name `adopted` is the text that `adopt` found.
"""


def kind(schema: dict[str, Any]) -> str:
    """A JSON schema's type in a word or two."""
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{str(schema['const']).lower()}`"
    if "anyOf" in schema:
        kinds = [kind(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " \\| ".join(dict.fromkeys(kinds))
    return {"object": "table", "boolean": "bool"}.get(
        schema.get("type", ""), schema.get("type", "table")
    )


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.default
    if value is PydanticUndefined or value is None:
        return "-"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def reference() -> str:
    parts = [HEAD]
    for title, model in TABLES:
        about = (model.__doc__ or "").split(":", 1)[-1].strip()
        parts.append(f"\n## `{title}`\n\n{about[:1].upper()}{about[1:]}\n")
        parts.append("\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n")
        properties = model.model_json_schema()["properties"]
        for name, field in model.model_fields.items():
            if name in ("smoke", "profiles"):
                continue
            meaning = (field.description or "").replace("|", "\\|")
            parts.append(
                f"| `{name}` | {kind(properties[name])} | {default(field)} | {meaning} |\n"
            )
    assert set(ConfigModel.model_fields) == {"store", "lanes"}, "a table is missing here"
    return "".join(parts)


def pages() -> dict[Path, str]:
    """Every generated file and its text."""
    here = Path(__file__).parent
    found = {here / "reference.md": reference()}
    for name in schemas.SCHEMAS:
        text = json.dumps(schemas.document(name), indent=2) + "\n"
        found[here / "schemas" / f"{name}.schema.json"] = text
    return found


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
