"""vLLM command lines: families, abbreviations, duplicates, dotted settings, wrappers."""

from __future__ import annotations

from typing import Any

import pytest

from lanectl.core.flags import Asked, canonical, find_server, mismatches, settings

MTP = {"method": "mtp", "num_speculative_tokens": 3}
JSON = '{"method":"mtp","num_speculative_tokens":3}'


@pytest.mark.parametrize(
    ("argv", "index"),
    [
        ("vllm serve /m", 2),
        ("/v/bin/python3 /v/bin/vllm serve /m", 3),
        ("python -m vllm.entrypoints.openai.api_server --model /m", 3),
        ("python3 -u -m vllm.entrypoints.openai.api_server", 4),
        ("python -m vllm.entrypoints.cli.main serve /m", 4),
        ("env A=b nohup nice -n 5 vllm serve /m", 8),
        ("uv run --with vllm vllm serve /m", 6),
        ("numactl -N 0 /v/bin/vllm serve /m", 5),
        ("python /v/vllm/entrypoints/openai/api_server.py --port 1", 2),
        ("docker run img vllm serve /m", 5),
        ("docker run -p 1:2 vllm/vllm-openai:v1 --model /m", 5),
        ("echo vllm serve /m", None),
        ("pkill -f vllm serve", None),
        ("command -v vllm serve", None),
        ("vllm bench serve", None),
        ("VLLM::EngineCore", None),
        ("ray serve run", None),
    ],
)
def test_find_server(argv: str, index: int | None) -> None:
    assert find_server(argv.split(" ")) == index


def test_no_words_are_no_server() -> None:
    assert find_server([]) is None
    assert settings([]).speculative is False


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("--max_num_seqs", "--max-num-seqs"),
        ("--max-num-s", "--max-num-seqs"),
        ("--max-num", "--max-num"),
        ("-sc", "--speculative-config"),
        ("--speculative-conf", "--speculative-config"),
        ("--speculative_config.a_b", "--speculative-config.a_b"),
        ("-tp", "--tensor-parallel-size"),
        ("--never-heard-of", "--never-heard-of"),
    ],
)
def test_canonical(typed: str, name: str) -> None:
    assert canonical(typed) == name


@pytest.mark.parametrize(
    ("words", "speculative"),
    [
        ([], False),
        (["--speculative-config", JSON], MTP),
        ([f"--speculative_config={JSON}"], MTP),
        (["-sc", JSON], MTP),
        ([f"-sc={JSON}"], MTP),
        (["--speculative-conf", JSON], MTP),
        (["--speculative-config", '{"method":"a"}', "--speculative-config", JSON], MTP),
        (["--spec-method", "mtp", "--spec-tokens", "3"], MTP),
        (["--speculative-model", "/d", "--num-speculative-tokens", "5"],
         {"model": "/d", "num_speculative_tokens": 5}),
        (["--speculative-config.method", "mtp", "--speculative-config.num_speculative_tokens=3"],
         MTP),
        (["--speculative-config.method=mtp", "--speculative-config", JSON], {"method": "mtp"}),
        (["-sc.method", "mtp"], {"method": "mtp"}),
        (["--speculative-config.a.b", "1", "--speculative-config.a.c", "x"],
         {"a": {"b": 1, "c": "x"}}),
        (["--speculative-config.layers+", "1,2"], {"layers": ["1", "2"]}),
        (["--speculative-config", "None"], False),
        (["--speculative-config", "null"], False),
        (["--speculative-config", "{method:mtp}"], "unknown"),
        (["--speculative-config"], "unknown"),
        (["--config", "f.yaml"], "unknown"),
        (["--config", "f.yaml", "--speculative-config", JSON], MTP),
        (["--spec", "mtp"], "unknown"),
        (["--seed", "--spec-method"], {"method": True}),
        (["--served-model-name", "a", "--seed", "1"], False),
    ],
)  # fmt: skip
def test_speculative(words: list[str], speculative: Any) -> None:
    assert settings(["vllm", "serve", "/m", *words]).speculative == speculative


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("", None),
        ("--max-num-seqs 4", 4),
        ("--max_num_seqs=4 --max-num-s 8", 8),
        ("--max-num-seqs many", "unknown"),
        ("--max-num-seqs", "unknown"),
        ("--config f.yaml", "unknown"),
        ("--config f.yaml --max-num-seqs 4", 4),
    ],
)
def test_max_num_seqs(words: str, value: object) -> None:
    assert settings(["vllm", "serve", "/m", *words.split()]).max_num_seqs == value


def test_settings_of_a_live_process() -> None:
    argv = ["/v/python3", "/v/vllm", "serve", "/m", "--port", "8000", "--enforce-eager"]
    argv += ["--tool-call-parser", "hermes", "--served-model-name", "a", "b", "-O3", "--seed", "-1"]
    said = settings(argv)
    assert (said.model, said.port) == ("/m", 8000)
    assert said.flags["--enforce-eager"] is True
    assert said.flags["--tool-call-parser"] == "hermes"
    assert said.flags["--served-model-name"] == "a b"
    assert said.flags["--seed"] == "-1"
    assert said.flags["--compilation-config"] == "3"


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (["serve", "/m"], "/m"),
        (["serve", "--enforce-eager", "/m"], "/m"),
        (["serve", "--port", "1", "/m"], "/m"),
        (["serve", "--model", "/m"], "/m"),
        (["serve", "--config", "f"], None),
    ],
)
def test_model(words: list[str], model: str | None) -> None:
    assert settings(["vllm", *words]).model == model


@pytest.mark.parametrize(
    ("words", "asked", "count"),
    [
        (["--max-num-seqs", "8"], Asked(max_num_seqs=8), 0),
        (["--max-num-seqs", "4"], Asked(max_num_seqs=8), 1),
        ([], Asked(max_num_seqs=8), 1),
        ([], Asked(speculative=False), 0),
        (["-sc", JSON], Asked(speculative=False), 1),
        (["--spec-method", "mtp", "--spec-tokens", "3"], Asked(speculative=False), 2),
        (["--speculative-config.x", "1"], Asked(speculative=False), 1),
        (["--spec", "x"], Asked(speculative=False), 1),
        (["--config", "f"], Asked(speculative=False), 1),
        (["-sc", JSON], Asked(speculative=MTP), 0),
        (["-sc", JSON], Asked(speculative={"method": "mtp"}), 0),
        (["-sc", JSON], Asked(speculative={"method": "eagle", "x": 1}), 2),
        ([], Asked(speculative=MTP), 1),
        ([], Asked(model="/m"), 0),
        ([], Asked(model="/other"), 1),
        (["--max-model-len=65536"], Asked(flags={"--max-model-len": "65536"}), 0),
        (["--max_model_len=65536"], Asked(flags={"--max-model-len": "1"}), 1),
        (["--hf-overrides", '{"a": 1}'], Asked(flags={"--hf-overrides": '{"a":1}'}), 0),
        (["--enforce-eager"], Asked(flags={"--enforce-eager": True}), 0),
        ([], Asked(flags={"--enforce-eager": True}), 1),
        (["--swap-space", "4"], Asked(flags={"--swap-space": False}), 1),
        ([], Asked(flags={"--swap-space": False}), 0),
        (["--swap-space", "4"], Asked(flags={"--swap-space": True}), 1),
    ],
)
def test_mismatches(words: list[str], asked: Asked, count: int) -> None:
    found = mismatches(["python3", "/v/vllm", "serve", "/m", *words], asked)
    assert len(found) == count


def test_another_program_carries_nothing() -> None:
    assert len(mismatches(["sleep", "1"], Asked())) == 1
