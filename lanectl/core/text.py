"""Text that came from elsewhere, made fit to show: escaped, bounded, and without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"


def printable(text: str, limit: int = 200) -> str:
    """One line of at most `limit` characters that cannot steer a terminal.

    Whatever is not printable (control and escape characters, line ends, marks that turn the
    reading direction, lone surrogates) stands as a Python escape. A cut text ends in an ellipsis.
    """
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text[: limit + 1]
    )
    return shown if len(shown) <= limit else shown[: max(limit - 1, 0)] + "…"


def mask(text: str) -> str:
    """`text` with the secrets in it replaced by `***`; doing it twice changes nothing more.

    Masked are values after a flag, variable or key whose name says so (`--api-key X`,
    `export HF_TOKEN=…`, `"password": "…"`), HTTP credentials, passwords in addresses, private
    keys, and words with the prefix of a well-known token. References (`$HF_TOKEN`) and the
    vocabulary of language models (`eos_token`, `--max-tokens 512`) stay. In doubt it masks.
    The time it takes is linear in the text.
    """
    if "\x1b" in text:
        # A colour's last letter must not pass for the beginning of a name.
        text = _COLOUR.sub(rf"\g<0>{_APART}", text)
        return mask(text.replace("\x1b", _ESCAPE)).replace(_ESCAPE, "\x1b").replace(_APART, "")
    text = _PRIVATE_KEY.sub(rf"\g<head>{MASK}", text)
    text = _CREDENTIALS.sub(rf"\g<head>{MASK}", text)
    text = _PASSWORD_IN_URL.sub(rf"\g<head>{MASK}@", text)
    text = _KNOWN.sub(MASK, text)
    return _mask_named(text)


def mask_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line with its secrets masked, word by word."""
    shown: list[str] = []
    hide_after = ""
    for word in argv:
        if word.startswith("-"):
            hide_after = word if _is_secret(word) else ""
            shown.append(mask(word))
        elif hide_after:
            shown.append(MASK)
            if not _takes_several(hide_after):
                hide_after = ""
        else:
            shown.append(mask(word))
    return tuple(shown)


def mask_value(name: str, value: str) -> str:
    """The value of a flag, variable or key of that name, masked; a reference to a secret stays."""
    return _hidden(value) if _is_secret(name) and not _counts(name, "=", value) else mask(value)


def mask_document(value: Any, name: str = "") -> Any:
    """A JSON document with its secrets masked: by the words in it, and by the names of its keys."""
    if isinstance(value, str):
        return mask_value(name, value)
    if isinstance(value, Mapping):
        return {key: mask_document(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        if not _is_secret(name) and all(isinstance(word, str) for word in value):
            return list(mask_argv(value))
        return [mask_document(inner, name) for inner in value]
    return value


# ------------------------------------------------------------------- secrets that a name gives away

# Possessive quantifiers (`++`) keep each of these linear: no two of their parts can match the
# same character, so there is nothing to go back for.
_NAMED = re.compile(
    r"""(?<![A-Za-z0-9_-])
    (?P<name> (?P<flag>--)? [A-Za-z0-9_] [A-Za-z0-9_-]*+ )
    (?P<sep>
        \\?["']? [ \t]{0,8}+ [=:] (?!=) [ \t]{0,8}+                     # name=…, "name": …
      | (?(flag) ["'] ,? \s*+ (?=["']) | (?!) )                         # "--name", "…"
      | (?(flag) (?: [ \t] | \\\r?\n )++ (?!-- | [<>|&;\#]) | (?!) )    # --name …
    )""",
    re.VERBOSE,
)
# An unclosed quote counts up to the end of its line: a cut text must not show what it hides.
_VALUE = re.compile(
    r"""(?:
        " (?: \\[^\n] | [^"\\\n] )*+ "?
      | \\" (?: [^"\\\n] | \\[^"\n] )*+ (?: \\" )?                      # \"…\" inside another
      | ' [^'\n]*+ '?
      | \[ [^\]\n]*+ \]?                                                # a Python or JSON list
      | \$\{ [^}\n]*+ \}?
      | \$\( [^)\n]*+ \)?
      | [^\s"'`,;&|<>(){}\[\]\\]++
    )++""",
    re.VERBOSE,
)
_MORE_WORDS = re.compile(r"(?:[ \t]+(?![-<>|&;#\\])\S++)++")

_SECRET_NAME = re.compile(
    r"pass(?:word|wd|phrase)"
    r"|(?:^|[-_])(?:api[-_]?keys?|token|secrets?|credentials?|pwd)$"
    r"|[A-Za-z0-9][-_]key$",  # a bare `key` is a key of a dictionary
    re.IGNORECASE,
)
_ORDINARY_NAME = re.compile(
    r"(?:file|path|dir)$"
    r"|(?:^|[-_])(?:eos|bos|pad|unk|sep|cls|mask|stop|start|end|think|special|image|audio|video|"
    r"first|next|last|per|output|input|prompt|draft|bonus|call)[-_]token$",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(
    r"""\\?["']?(?:\$\w+|\$\{\w+\}|\$\((?:cat\s|<)[^)]*\)|none|null|true|false)?\\?["']?""",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[0-9.]+(?:ms|s)?")


def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _ORDINARY_NAME.search(name)


def _takes_several(name: str) -> bool:
    """vLLM's `--api-key` takes several keys, one a word."""
    return name.replace("_", "-").lower() == "--api-key"


def _mask_named(text: str) -> str:
    """Mask the value after each name that says it is a secret."""
    parts: list[str] = []
    shown = at = 0
    while found := _NAMED.search(text, at):
        at = found.end("name")
        name, sep = found["name"], found["sep"]
        value = _VALUE.match(text, found.end()) if _is_secret(name) else None
        if value is None or _counts(name, sep, value[0]):
            continue
        parts += text[shown : value.start()], _hidden(value[0])
        shown = at = value.end()
        if _takes_several(name) and (more := _MORE_WORDS.match(text, at)):
            parts.append(f" {MASK}")
            shown = at = more.end()
    return "".join((*parts, text[shown:]))


def _counts(name: str, sep: str, value: str) -> bool:
    """Whether it is a number of tokens, or prose (`unexpected token: x`), and no secret."""
    if not name.lower().endswith("token"):
        return False
    return bool(_NUMBER.fullmatch(value)) or (name.lower() == "token" and sep.strip() == ":")


def _hidden(value: str) -> str:
    """The mask, in the quotes the value had; a reference to a secret is none."""
    if _NO_SECRET.fullmatch(value):
        return value
    quote = re.match(r"""\\?["']""", value)
    return f"{quote[0]}{MASK}{quote[0]}" if quote else MASK


# ------------------------------------------------------------- secrets that give themselves away

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ESCAPE, _APART = "\ufdd0", "\ufdd1"
"""Stand-ins that no text holds: Unicode gives these to nobody."""
_PRIVATE_KEY = re.compile(
    r"(?P<head>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)[A-Za-z0-9+/=\s\\:,]++"
)
_CREDENTIALS = re.compile(
    r"""(?P<head>
        \b authorization ["']? [ \t]* [:=] [ \t]* ["']? \w+ [ \t]+ (?=[A-Za-z0-9])
      | \b bearer [ \t]+ (?= [A-Za-z0-9._~+/=-]{16} | [A-Za-z._~+/=-]{0,16} [0-9] )
    ) [A-Za-z0-9._~+/=-]++""",
    re.VERBOSE | re.IGNORECASE,
)
_PASSWORD_IN_URL = re.compile(
    r"""(?P<head> (?<![a-z0-9+.-]) [a-z] [a-z0-9+.-]*+ :// [^\s/:@"']*+ : ) [^\s/@"']++ @""",
    re.VERBOSE | re.IGNORECASE,
)
_KNOWN = re.compile(
    r"""(?<![A-Za-z0-9_-]) (?:
        hf_ (?: (?=[a-z]*+[A-Z0-9]) [A-Za-z0-9]{6,} | [A-Za-z0-9]{16,} )   # but not hf_overrides
      | sk- [A-Za-z0-9_-]{8,}
      | gh[opsur]_ [A-Za-z0-9]{8,} | github_pat_ [A-Za-z0-9_]{8,} | glpat- [A-Za-z0-9_-]{8,}
      | xox[abprs]- [A-Za-z0-9-]{8,} | nvapi- [A-Za-z0-9_-]{8,} | AKIA [A-Z0-9]{16}
      | eyJ [A-Za-z0-9_-]{8,} \. eyJ [A-Za-z0-9_-]{4,} (?: \. [A-Za-z0-9_-]+ )?
    )""",
    re.VERBOSE,
)
