"""Known hazards of a vLLM configuration: what others have reported of settings like these.

Pure. Nothing here is a finding of our own: each hazard names the report it comes from, and its
text says "reported". A hazard is no proof that this lane is bad; the smoke gate tells that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from lanectl.core.flags import ServerSettings
from lanectl.core.vllm_flags import CONFIG, MAX_NUM_SEQS


@dataclass(frozen=True)
class Hazard:
    """One hazard. `code` is stable; `mend` is what to do; `source` is where it was reported."""

    severity: Literal["warning", "info"]
    code: str
    message: str
    mend: str
    source: str


@dataclass(frozen=True)
class Context:
    """What is known beside the flags; None where it is not.

    version: as the lane's `/version` says. prefix_caching: as the engine itself says.
    model_config: the checkpoint's config.json. running: the flags are those of a live server.
    """

    version: str | None = None
    prefix_caching: bool | None = None
    model_config: Mapping[str, Any] | None = None
    running: bool = False


def hazards(settings: ServerSettings, context: Context) -> list[Hazard]:
    """Every known hazard of these settings, in the order of the list below."""
    return [hazard for look in _HAZARDS for hazard in look(settings, context)]


# -------------------------------------------------------------------------------- what is asked for

_HYBRID_NAME: Final = re.compile(
    r"qwen-?3[-_.]?next|qwen-?3[._]?[5-9](?![0-9b])|mamba|jamba|bamba|zamba|falcon-?h1"
    r"|nemotron-?(?:h|nano|3)(?![a-z])|granite-?4|kimi-?linear|lfm-?2|minimax-?text",
    re.IGNORECASE,
)
"""Families with recurrent layers. `Qwen3-8B` is none of them, `Qwen3.8-27B` is."""
_HYBRID_LAYER: Final = re.compile(r"linear_attention|mamba|gated_delta|recurrent|conv", re.I)
_MANY: Final = 32
"""So many sequences at once count as high concurrency here; no report gives an exact limit."""
_HITS_LOST_FROM: Final = (0, 28)


def is_mtp(settings: ServerSettings) -> bool:
    """Multi-token prediction is asked for: by `mtp`, or by an older name as `qwen3_next_mtp`."""
    spec = settings.speculative
    return isinstance(spec, dict) and "mtp" in str(spec.get("method", "")).lower()


def is_hybrid(settings: ServerSettings, context: Context) -> bool | None:
    """Does the model mix attention with recurrent layers? None: neither name nor files tell."""
    if any(name.startswith("--mamba") for name in settings.flags):
        return True
    if context.model_config is not None:
        text = context.model_config.get("text_config", context.model_config)
        layers = text.get("layer_types") if isinstance(text, dict) else None
        if isinstance(layers, list):
            return any(_HYBRID_LAYER.search(str(layer)) for layer in layers)
        kinds = [context.model_config.get("model_type"), *_architectures(context.model_config)]
        if any(_HYBRID_NAME.search(str(kind)) for kind in kinds):
            return True
    names = (settings.model, settings.flags.get("--served-model-name"))
    return True if any(_HYBRID_NAME.search(str(name)) for name in names if name) else None


def _architectures(config: Mapping[str, Any]) -> list[Any]:
    found = config.get("architectures")
    return found if isinstance(found, list) else []


def prefix_caching(settings: ServerSettings, context: Context) -> bool | None:
    """On or off; None where it is the version's own default, which the engine did not tell."""
    if context.prefix_caching is not None:
        return context.prefix_caching
    if "--no-enable-prefix-caching" in settings.flags:
        return False
    return True if "--enable-prefix-caching" in settings.flags else None


def version_tuple(version: str | None) -> tuple[int, int] | None:
    """Major and minor of `0.27.1`, `v0.28.1rc1.dev43`; None for what is no version."""
    found = re.match(r"v?(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else None


def _speculates(settings: ServerSettings) -> bool:
    return bool(settings.speculative) and settings.speculative != "unknown"


# ---------------------------------------------------------------------------------- the hazards

_OFF: Final = "a profile with `speculative = false`"
_NO_PREFIX: Final = "put `--no-enable-prefix-caching` into the launcher"


def _mtp_with_prefix_caching(settings: ServerSettings, context: Context) -> Iterator[Hazard]:
    caching, hybrid = prefix_caching(settings, context), is_hybrid(settings, context)
    if not is_mtp(settings) or caching is False or hybrid is False:
        return
    state = "prefix caching" if caching else "prefix caching (on unless this version says no)"
    what = "a hybrid model" if hybrid else "a model whose name does not tell whether it is hybrid"
    yield Hazard(
        "warning" if hybrid else "info",
        "mtp-prefix-caching",
        f"MTP with {state} on {what}: on hybrid models (Qwen3-Next, Qwen3.5 and later, Mamba) "
        "malformed and missing tool calls are reported on cache hits, lasting until a restart",
        f"{_NO_PREFIX}, or switch to {_OFF}; judge each with `lanectl smoke --gate switch`",
        "vllm#35800, vllm PR#51508, vllm#43559",
    )


def _mtp_concurrency(settings: ServerSettings, context: Context) -> Iterator[Hazard]:
    seqs = settings.max_num_seqs
    if not is_mtp(settings) or seqs == 1:
        return
    high = seqs is None or (isinstance(seqs, int) and seqs > _MANY)
    said = "not set (vLLM's default is in the hundreds)" if seqs is None else str(seqs)
    yield Hazard(
        "warning" if high else "info",
        "mtp-concurrency",
        f"MTP with {MAX_NUM_SEQS} {said}: degenerate replies are reported above some product of "
        "concurrency and context length, for fresh sessions too",
        f"lower {MAX_NUM_SEQS}, and try the load you expect: `lanectl smoke --gate soak`",
        "club-3090#710",
    )


def _several_draft_tokens(settings: ServerSettings, context: Context) -> Iterator[Hazard]:
    spec = settings.speculative
    tokens = spec.get("num_speculative_tokens") if isinstance(spec, dict) else None
    if not is_mtp(settings) or not isinstance(tokens, int) or tokens <= 1:
        return
    layers = _mtp_layers(context.model_config)
    if layers is not None and layers >= tokens:
        return
    has = "may have one MTP layer only" if layers is None else f"has {layers} MTP layer(s)"
    yield Hazard(
        "info",
        "mtp-draft-tokens",
        f"num_speculative_tokens is {tokens} and the model {has}: vLLM then runs the same layer "
        "again, and itself warns of a lower acceptance rate",
        'try `"num_speculative_tokens": 1` and compare the acceptance rate',
        "vllm PR#13626",
    )


def _mtp_layers(config: Mapping[str, Any] | None) -> int | None:
    if config is None:
        return None
    text = config.get("text_config", config)
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        found = text.get(key) if isinstance(text, dict) else None
        if isinstance(found, int):
            return found
    return None


def _sampling_not_applied(settings: ServerSettings, context: Context) -> Iterator[Hazard]:
    if not _speculates(settings):
        return
    preset = _json(settings.flags.get("--override-generation-config"))
    named = [key for key in ("min_p", "logit_bias") if preset.get(key)]
    if named:
        yield Hazard(
            "warning",
            "sampling-under-speculation",
            f"--override-generation-config sets {' and '.join(named)} for every request, which "
            "speculative decoding is reported to ignore in older versions and to answer with 400 "
            "in newer ones",
            f"remove {' and '.join(named)} from --override-generation-config, or use {_OFF}",
            "vllm#42744",
        )
        return
    yield Hazard(
        "info",
        "sampling-under-speculation",
        "under speculative decoding, requests with `min_p` or `logit_bias` are reported to be "
        "answered 400 by newer versions, and older ones to ignore both silently",
        "leave `min_p` and `logit_bias` out of the agents' requests",
        "vllm#42744",
    )


def _required_with_thinking(settings: ServerSettings, context: Context) -> Iterator[Hazard]:
    if not is_mtp(settings) or "--reasoning-parser" not in settings.flags:
        return
    yield Hazard(
        "info",
        "mtp-required-tool-choice",
        'thinking with `tool_choice: "required"` under MTP was seen once to end in HTTP 500 '
        "(`grammar rejected tokens`)",
        'let the agents ask with `tool_choice: "auto"`',
        "vLLM's log: `Failed to advance FSM`",
    )


def _required_tool_choice(settings: ServerSettings, context: Context) -> Iterator[Hazard]:
    if "--reasoning-parser" not in settings.flags:
        return
    yield Hazard(
        "info",
        "required-tool-choice",
        'with a reasoning parser, `tool_choice: "required"` is reported to return '
        "`finish_reason: tool_calls` and no tool call",
        'let the agents ask with `tool_choice: "auto"`',
        "vllm#53255, vllm#53363",
    )


def _hits_lost(settings: ServerSettings, context: Context) -> Iterator[Hazard]:
    version = version_tuple(context.version)
    if version is None or version < _HITS_LOST_FROM or not _speculates(settings):
        return
    if is_hybrid(settings, context) and prefix_caching(settings, context) is not False:
        yield Hazard(
            "info",
            "speculation-loses-cache-hits",
            f"vLLM {context.version}: speculation on a hybrid model is reported to end all "
            "prefix-cache hits without a word; long prompts are then read anew each time, and "
            "the hot probe stays inconclusive",
            f"compare `vllm:prefix_cache_hits_total` with {_OFF}",
            "vllm#54360",
        )


def _several_api_servers(settings: ServerSettings, context: Context) -> Iterator[Hazard]:
    said = settings.flags.get("--api-server-count")
    if isinstance(said, str) and said.isdigit() and int(said) > 1:
        yield Hazard(
            "info",
            "several-api-servers",
            f"--api-server-count {said}: several processes listen on one port, and one that is "
            "left over from an earlier start keeps answering beside the new ones",
            "leave --api-server-count out unless one API process is measured to be too few",
            "vllm#55510",
        )


_REMOVED: Final[Mapping[str, str]] = {
    "--disable-log-requests": "remove it: not to log requests is the default",
    "--enable-reasoning": "remove it: --reasoning-parser alone does it",
    "--use-v2-block-manager": "remove it",
    "--num-scheduler-steps": "remove it",
    "--speculative-model": "write it into the JSON of --speculative-config",
    "--num-speculative-tokens": "write it into the JSON of --speculative-config",
}


def _removed_flags(settings: ServerSettings, context: Context) -> Iterator[Hazard]:
    for flag, mend in _REMOVED.items():
        if flag in settings.flags:
            yield Hazard(
                "info" if context.running else "warning",
                "removed-flag",
                f"{flag} is reported removed: a vLLM that no longer knows it exits with code 2, "
                f"`unrecognized arguments: {flag}`",
                mend,
                "vLLM release notes",
            )


def _unread_settings(settings: ServerSettings, context: Context) -> Iterator[Hazard]:
    if CONFIG in settings.flags:
        yield Hazard(
            "info",
            "config-file",
            f"the server also reads the file after {CONFIG}, which is not looked into here: it "
            "may turn speculation or prefix caching on",
            "put what matters on the command line, where it wins over the file",
            "vLLM's documentation of --config",
        )


def _json(value: str | Literal[True] | None) -> Mapping[str, Any]:
    try:
        found = json.loads(value) if isinstance(value, str) else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


_HAZARDS: Final[tuple[Callable[[ServerSettings, Context], Iterator[Hazard]], ...]] = (
    _mtp_with_prefix_caching,
    _mtp_concurrency,
    _several_draft_tokens,
    _sampling_not_applied,
    _required_with_thinking,
    _required_tool_choice,
    _hits_lost,
    _several_api_servers,
    _removed_flags,
    _unread_settings,
)
