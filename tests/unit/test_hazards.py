"""Known hazards: which settings call them up, and which do not."""

from __future__ import annotations

from typing import Any

import pytest

from lanectl.core import flags
from lanectl.core.hazards import Context, Hazard, hazards, is_hybrid

MTP = """--speculative-config {"method":"mtp","num_speculative_tokens":3}"""


def found(words: str, **context: Any) -> dict[str, Hazard]:
    """The hazards of `vllm serve WORDS`, by code. A word holds no blanks here."""
    settings = flags.settings(["vllm", "serve", *words.split()])
    listed = hazards(settings, Context(**context))
    return {hazard.code: hazard for hazard in listed}


def test_plain_server_has_no_hazard() -> None:
    assert found("Qwen/Qwen3-8B --max-num-seqs 8") == {}


def test_mtp_with_prefix_caching_on_a_hybrid_model() -> None:
    hazard = found(f"RedHatAI/Qwen3.8-27B-INT4 {MTP} --enable-prefix-caching")["mtp-prefix-caching"]
    assert hazard.severity == "warning"
    assert "vllm#35800" in hazard.source and "PR#51508" in hazard.source
    assert "--no-enable-prefix-caching" in hazard.mend and "speculative = false" in hazard.mend
    assert "reported" in hazard.message


@pytest.mark.parametrize(
    ("words", "context"),
    [
        (f"Qwen/Qwen3-Next-80B {MTP} --no-enable-prefix-caching", {}),
        (f"Qwen/Qwen3-Next-80B {MTP}", {"prefix_caching": False}),
        ("Qwen/Qwen3-Next-80B --enable-prefix-caching", {}),
        (f"/m {MTP}", {"model_config": {"layer_types": ["full_attention"]}}),
        ("Qwen/Qwen3-Next-80B --speculative-config None", {}),
    ],
)
def test_no_mtp_hazard_where_one_half_is_off(words: str, context: dict[str, Any]) -> None:
    assert "mtp-prefix-caching" not in found(words, **context)


def test_mtp_on_a_model_that_may_be_hybrid_is_told_mildly() -> None:
    assert found(f"/models/mine {MTP}")["mtp-prefix-caching"].severity == "info"
    config = {"text_config": {"layer_types": ["linear_attention", "full_attention"]}}
    hazard = found(f"/models/mine {MTP}", model_config=config)["mtp-prefix-caching"]
    assert hazard.severity == "warning", "the checkpoint's own config.json says it"


@pytest.mark.parametrize(
    ("model", "hybrid"),
    [
        ("Qwen/Qwen3-Next-80B-A3B", True),
        ("Qwen/Qwen3.5-35B-A3B", True),
        ("Qwen3_6-27B", True),
        ("/srv/models/qwen38-27b", True),
        ("nvidia/Nemotron-H-8B", True),
        ("ai21labs/Jamba-tiny", True),
        ("Qwen/Qwen3-8B", None),
        ("Qwen/Qwen3-32B", None),
        ("Qwen/Qwen2.5-7B", None),
        ("qwen-35b", None),
        ("meta-llama/Llama-3.1-8B", None),
    ],
)
def test_hybrid_by_name(model: str, hybrid: bool | None) -> None:
    assert is_hybrid(flags.settings(["vllm", "serve", model]), Context()) is hybrid


def test_mamba_flags_show_a_hybrid_model() -> None:
    words = f"/models/mine {MTP} --mamba-cache-dtype float32"
    assert found(words)["mtp-prefix-caching"].severity == "warning"


def test_min_p_for_every_request_under_speculation() -> None:
    words = """/m --override-generation-config {"min_p":0.05,"temperature":0.6}"""
    assert "sampling-under-speculation" not in found(words)
    hazard = found(f"{words} {MTP}")["sampling-under-speculation"]
    assert hazard.severity == "warning" and "min_p" in hazard.mend
    assert hazard.source == "vllm#42744"
    assert found(f"/m {MTP}")["sampling-under-speculation"].severity == "info"
    assert (
        found(f"/m {MTP} --override-generation-config broken")[
            "sampling-under-speculation"
        ].severity
        == "info"
    )


@pytest.mark.parametrize(
    ("seqs", "severity"),
    [("--max-num-seqs 1", None), ("--max-num-seqs 8", "info"), ("--max-num-seqs 64", "warning")],
)
def test_mtp_with_many_sequences(seqs: str, severity: str | None) -> None:
    hazard = found(f"/m {MTP} {seqs}").get("mtp-concurrency")
    assert (hazard.severity if hazard else None) == severity
    assert found(f"/m {MTP}")["mtp-concurrency"].severity == "warning", "the default is hundreds"


def test_more_drafts_than_mtp_layers() -> None:
    assert "mtp-draft-tokens" in found(f"/m {MTP}")
    assert "mtp-draft-tokens" in found(f"/m {MTP}", model_config={"num_nextn_predict_layers": 1})
    enough = {"text_config": {"mtp_num_hidden_layers": 3}}
    assert "mtp-draft-tokens" not in found(f"/m {MTP}", model_config=enough)
    one = """--speculative-config {"method":"mtp","num_speculative_tokens":1}"""
    assert "mtp-draft-tokens" not in found(f"/m {one}")


def test_required_tool_choice_with_a_reasoning_parser() -> None:
    hazard = found("/m --reasoning-parser qwen3")["required-tool-choice"]
    assert "vllm#53255" in hazard.source
    assert "mtp-required-tool-choice" in found(f"/m --reasoning-parser qwen3 {MTP}")
    assert found("/m") == {}


def test_several_api_servers_and_flags_that_are_gone() -> None:
    assert "several-api-servers" in found("/m --api-server-count 2")
    assert "several-api-servers" not in found("/m --api-server-count 1")
    assert found("/m --disable-log-requests")["removed-flag"].severity == "warning"
    live = found("/m --disable-log-requests", running=True)["removed-flag"]
    assert live.severity == "info", "this very server came up with it"


@pytest.mark.parametrize(
    ("version", "told"),
    [("0.28.1rc1.dev43", True), ("v1.0", True), ("0.27.1", False), (None, False)],
)
def test_hits_lost_is_of_newer_versions_only(version: str | None, told: bool) -> None:
    codes = found(f"Qwen/Qwen3.8-27B {MTP}", version=version)
    assert ("speculation-loses-cache-hits" in codes) is told


def test_unknown_speculation_raises_no_hazard_of_it() -> None:
    codes = found("/m --config server.yaml")
    assert list(codes) == ["config-file"]


def test_every_hazard_says_that_it_was_reported_and_how_to_mend_it() -> None:
    words = f"Qwen/Qwen3.8-27B {MTP} --reasoning-parser x --api-server-count 2 --enable-reasoning"
    listed = found(words, version="0.28.0")
    assert len(listed) == 9
    for hazard in listed.values():
        assert hazard.mend and hazard.source, hazard.code
    told = [h for h in listed.values() if "reported" in h.message or "seen" in h.message]
    assert len(told) >= 6
