"""Text from elsewhere: printable, bounded, without secrets."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanectl.core.text import MASK, mask, mask_argv, printable

# ------------------------------------------------------------------------------------- printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, text, 好", "plain, text, 好"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("two\nlines\r\n", r"two\nlines\r\n"),
        ("\x00\x07\x9b", r"\x00\x07\x9b"),
        ("\u202eabc\u2066", r"\u202eabc\u2066"),
        ("\udc80", r"\udc80"),
        ("\u2028", r"\u2028"),
    ],
)
def test_what_could_steer_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_text_is_cut_and_says_so() -> None:
    assert printable("x" * 300, 10) == "x" * 9 + "…"
    assert printable("x" * 10, 10) == "x" * 10
    assert printable("\x00" * 10, 10) == r"\x00\x00\x"[:9] + "…"


@given(st.text(st.characters(codec=None)), st.integers(1, 60))
def test_printable_is_bounded_and_one_line(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert shown.isprintable()
    shown.encode("utf-8")


# ------------------------------------------------------------------------------------------ mask

SECRET = "S3cretValue9"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nS3cretValue9\nabc=\n-----END RSA PRIVATE KEY-----\nnext"


@pytest.mark.parametrize(
    "text",
    [
        f"vllm serve m --api-key {SECRET} --port 8000",
        f"--api-key={SECRET}",
        f'--api-key "{SECRET} more" --port 1',
        f"--api-key \\\n    {SECRET} \\\n    --port 8000",
        f"--api-key a {SECRET} b --port 8000",
        f"--api_key {SECRET}",
        f"--hf-token={SECRET}",
        f"--hf-token '{SECRET}'",
        f"export HF_TOKEN={SECRET}",
        f'export HF_TOKEN="{SECRET} and more"; exec vllm',
        f"HF_TOKEN=${{HF_TOKEN:-{SECRET}}}",
        f"VLLM_API_KEY='{SECRET}' vllm serve m",
        f"AWS_SECRET_ACCESS_KEY={SECRET}/+x",
        f"APP_SECRET={SECRET}",
        f"PGPASSWORD={SECRET} psql",
        f"MYSQL_PASSWORD_2={SECRET}",
        f'DB_PASSWORD="a\\"{SECRET}"',
        f'DB_PASSWORD="{SECRET}',
        f"supervisor_password = '{SECRET}'",
        f"Authorization: Bearer {SECRET}",
        f'curl -H "Authorization: Bearer {SECRET}" http://x',
        f"authorization: Basic {SECRET}==",
        f"X-Api-Key: {SECRET}",
        f"the bearer {SECRET} was refused",
        f"http://kit:{SECRET}@host:8000/v1",
        f"pull https://user:{SECRET}@example.org/r.git failed",
        f"http://host/?api_key={SECRET}&x=1",
        f"non-default args: {{'model_tag': 'm', 'api_key': ['{SECRET}', '{SECRET}2'], 'port': 1}}",
        f"Namespace(api_key='{SECRET}', hf_token=None)",
        f'{{"api_key": "{SECRET}"}}',
        f'"{{\\"api_key\\": \\"{SECRET}\\"}}"',
        f'["vllm", "--api-key", "{SECRET}", "--port"]',
        f"['vllm', '--api-key', '{SECRET}']",
        f"args=--api-key={SECRET}",
        f"password: {SECRET}",
        "hf_S3cretValue9abcdefghijklmnopqrst",
        "hf_" + "a" * 34,
        "got sk-S3cretValue9-abcdef from env",
        "ghp_S3cretValue9abcdef, github_pat_S3cretValue9_abc",
        "glpat-S3cretValue9 xoxb-1-S3cretValue9 nvapi-S3cretValue9",
        "eyJhbGciOiJIUzI1NiJ9.eyJTM2NyZXRWYWx1ZTki.S3cretValue9",
        PEM,
        f"\x1b[31m--api-key {SECRET}",
        f"\x1b[2J--api-key \x1b[1;32m{SECRET}\x1b[0m",
        f"\x1b[0;1mAuthorization: Bearer {SECRET}",
        f"\x1b[mhttp://kit:{SECRET}@host",
        "\x1b[38;5;12msk-S3cretValue9-abc",
    ],
)
def test_secrets_are_masked(text: str) -> None:
    shown = mask(text)
    assert SECRET not in shown
    assert "a" * 34 not in shown
    assert MASK in shown
    assert mask(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "--max-tokens 512 --max-model-len 4096",
        "--tokenizer Qwen/Qwen3 --tokenizer-mode auto --skip-tokenizer-init",
        "max_num_batched_tokens=8192, max_num_seqs=8",
        "eos_token_id=151645, 'eos_token': '<|im_end|>', pad_token: x",
        "num_speculative_tokens: 3",
        "time_per_output_token=5.2 first_token 0.3s hf_overrides={} hf_config_path=None",
        "hf_token=None, api_key=None, password=''",
        'exec vllm serve m --api-key "$VLLM_API_KEY" --port 8000',
        "export HF_TOKEN=$HF_TOKEN OTHER_TOKEN=${HF_TOKEN}",
        "HF_TOKEN=$(cat /run/secrets/hf)",
        "export HF_TOKEN=",
        "api_key_file = /etc/lanectl/q.key, supervisor_password_file=/etc/p",
        "--ssl-keyfile /etc/k.pem --api-key-file /etc/q",
        "ssh://kit@workstation and http://127.0.0.1:8000/v1",
        "task-force-something sk- hf_ ghp_",
        "the password was wrong, a bearer token is needed, basic usage",
        "Unexpected token: } in JSON",
        "sorted(rows, key=lambda row: row.at)",
        "--api-key --port 8000",
        'echo "enter the password: "\nexec vllm serve "m"',
        "\x1b[31mred\x1b[0m --tokenizer x",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask(text) == text


def test_only_the_secret_goes() -> None:
    assert (
        mask('export HF_TOKEN="x y"\nexec vllm serve m \\\n  --api-key k1 k2 \\\n  --port 8000')
        == 'export HF_TOKEN="***"\nexec vllm serve m \\\n  --api-key *** *** \\\n  --port 8000'
    )
    assert mask("{'api_key': ['a', 'b'], 'port': 8000}") == "{'api_key': ***, 'port': 8000}"


def test_argv() -> None:
    argv = ["vllm", "serve", "m", "--api-key", "k1", "k2", "--hf-token", "t", "word"]
    argv += ["--hf-token=t", "--max-tokens", "512", "--tokenizer", "z", "HF_TOKEN=t"]
    shown = ("vllm", "serve", "m", "--api-key", MASK, MASK, "--hf-token", MASK, "word")
    shown += ("--hf-token=***", "--max-tokens", "512", "--tokenizer", "z", "HF_TOKEN=***")
    assert mask_argv(argv) == shown


@given(st.text(st.sampled_from("a1 =:\"'\\[]{}$-_\n*")))
def test_masking_twice_changes_nothing_more(text: str) -> None:
    shown = mask(f"--api-key={text} HF_TOKEN={text}")
    assert mask(shown) == shown


@pytest.mark.parametrize(
    "piece",
    [
        "a-",
        "api_key=",
        'api_key="',
        "password",
        "--api-key ",
        "http://",
        "x:",
        "\\",
        '"\\',
        "bearer ",
    ],
)
def test_no_text_makes_it_slow(piece: str) -> None:
    # A pattern that backtracks takes hours here; the limit is far above what linear takes.
    text = piece * (200_000 // len(piece))
    began = time.process_time()
    mask(text)
    assert time.process_time() - began < 5
