"""The stand-in's command line: the flags of `vllm serve` that launchers use, and its errors.

A flag that is not listed is refused as vLLM refuses it (exit 2, the reason in the last line), so
that a launcher with a removed flag dies here as it does there.
"""

from __future__ import annotations

import json
import os
import sys

from lanectl.demo.standin_modes import Modes

TYPE_CHECKING = False  # `typing` alone costs several milliseconds of every start
if TYPE_CHECKING:
    from typing import NoReturn


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SWITCHES = _words("""
    --async-scheduling --calculate-kv-scales --disable-custom-all-reduce --disable-fastapi-docs
    --disable-hybrid-kv-cache-manager --disable-log-stats --disable-uvicorn-access-log
    --enable-auto-tool-choice --enable-chunked-prefill --enable-expert-parallel
    --enable-force-include-usage --enable-log-outputs --enable-log-requests --enable-lora
    --enable-prefix-caching --enable-prompt-tokens-details --enable-request-id-headers
    --enable-server-load-tracking --enable-sleep-mode --enforce-eager --language-model-only
    --skip-mm-profiling --trust-remote-code
""")
"""Take no value; each exists as `--no-…` too."""

VALUES = _words("""
    --api-key --api-server-count --attention-backend --block-size --chat-template
    --chat-template-content-format --compilation-config --cpu-offload-gb --data-parallel-size
    --default-chat-template-kwargs --distributed-executor-backend --download-dir --dtype
    --generation-config --gpu-memory-utilization --hf-overrides --host --kv-cache-dtype
    --kv-cache-memory-bytes --kv-transfer-config --limit-mm-per-prompt --load-format
    --long-prefill-token-threshold --lora-modules --mamba-cache-dtype --mamba-ssm-cache-dtype
    --max-log-len --max-logprobs --max-model-len --max-num-batched-tokens --max-num-seqs
    --mm-processor-kwargs --model --num-gpu-blocks-override --optimization-level
    --override-generation-config --pipeline-parallel-size --port --quantization
    --reasoning-parser --response-role --revision --root-path --scheduling-policy --seed
    --served-model-name --shutdown-timeout --speculative-config --spec-method --spec-model
    --spec-tokens --standin-mode --stream-interval --structured-outputs-config
    --tensor-parallel-size --tokenizer --tokenizer-mode --tool-call-parser --tool-parser-plugin
    --uvicorn-log-level
""")
MANY = frozenset({"--api-key", "--lora-modules", "--served-model-name"})
ALIASES = {
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-O": "--optimization-level",
}
SHORTCUTS = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
INTEGERS = frozenset(
    {
        "--api-server-count",
        "--block-size",
        "--max-model-len",
        "--max-num-seqs",
        "--num-gpu-blocks-override",
        "--port",
    }
)


class Settings:
    """What one server was told on its command line."""

    def __init__(self, words: list[str]) -> None:
        """words: what follows `serve`. Exits 2 as argparse does."""
        values, switches, speculative = _read(words)
        self.given = {flag: texts[-1] for flag, texts in values.items()}
        self.model = self.given.get("--model", "Qwen/Qwen3-0.6B")
        self.names = values.get("--served-model-name", [self.model])
        self.host = self.given.get("--host", "")
        self.port = int(self.given.get("--port", "8000"))
        self.max_num_seqs = int(self.given.get("--max-num-seqs", "256"))
        self.max_model_len = int(self.given.get("--max-model-len", "32768"))
        self.blocks = int(self.given.get("--num-gpu-blocks-override", "16384"))
        self.api_keys = values.get("--api-key", [])
        self.reuse_port = int(self.given.get("--api-server-count", "1")) > 1
        self.prefix_caching = switches.get("--enable-prefix-caching", True)
        self.speculative: dict[str, object] | None = speculative or None
        try:
            self.modes = Modes(self.given.get("--standin-mode", os.environ.get("STANDIN_MODE", "")))
        except ValueError as error:
            fail(f"argument --standin-mode: {error}")
        if self.max_num_seqs < 1:
            fail("argument --max-num-seqs: must be greater than or equal to 1")

    @property
    def draft_tokens(self) -> int:
        """Tokens drafted in each step; 0 with speculation off."""
        if self.speculative is None:
            return 0
        number = self.speculative.get("num_speculative_tokens", 1)
        return number if isinstance(number, int) else 1


def fail(reason: str) -> NoReturn:
    print("usage: vllm serve [model_tag] [options]", file=sys.stderr)
    print(f"vllm serve: error: {reason}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def _read(
    words: list[str],
) -> tuple[dict[str, list[str]], dict[str, bool], dict[str, object]]:
    """Values and switches by full flag name, and the speculative settings."""
    values: dict[str, list[str]] = {}
    switches: dict[str, bool] = {}
    shortcuts: dict[str, object] = {}
    dotted: dict[str, object] = {}
    unknown: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if "--model" in values:
                unknown.append(word)
            else:
                values["--model"] = [word]
            continue
        flag, equals, value = word.partition("=")
        flag = ALIASES.get(flag, flag.replace("_", "-"))
        parent, dot, key = flag.partition(".")
        parent = ALIASES.get(parent, parent)
        if flag in SWITCHES and not equals:
            switches[flag] = True
        elif flag.startswith("--no-") and "--" + flag[5:] in SWITCHES and not equals:
            switches["--" + flag[5:]] = False
        elif flag not in VALUES and not (dot and parent in VALUES):
            unknown.append(word)
        else:
            if not equals:
                if not rest or rest[0].startswith("--"):
                    fail(f"argument {flag}: expected one argument")
                value = rest.pop(0)
            if dot:
                if parent == "--speculative-config":
                    # Keys keep their underscores; dashes are how people write them.
                    dotted[key.replace("-", "_")] = _scalar(value)
                continue
            values[flag] = [_checked(flag, value)]
            while flag in MANY and rest and not rest[0].startswith("-"):
                values[flag].append(rest.pop(0))
            if flag in SHORTCUTS:
                shortcuts[SHORTCUTS[flag]] = _scalar(value)
    if unknown:
        fail(f"unrecognized arguments: {' '.join(unknown)}")
    # Dotted keys are joined into one value that comes last, so they replace earlier JSON.
    settings = dotted or _settings(values.get("--speculative-config", [""])[-1])
    return values, switches, settings | shortcuts


def _checked(flag: str, value: str) -> str:
    if flag in INTEGERS and not value.removeprefix("-").isdigit():
        fail(f"argument {flag}: invalid int value: {value!r}")
    return value


def _settings(text: str) -> dict[str, object]:
    if not text:
        return {}
    try:
        settings = json.loads(text)
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        fail(f"argument --speculative-config/-sc: Value {text} cannot be converted to <loads>.")
    return settings


def _scalar(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
