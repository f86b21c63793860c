"""Log lines after which a start is over, as the real engine prints them (field notes 11b, 11d)."""

from __future__ import annotations

from lanectl.core.fatal import fatal_line, is_profile_fault, last_words

MEMORY = """\
(EngineCore pid=7) Traceback (most recent call last):
(EngineCore pid=7) ValueError: Free memory on device cuda:0 (10.12/139.8 GiB) on startup is less \
than desired GPU memory utilization (0.92, 128.62 GiB). Decrease GPU memory utilization
(EngineCore pid=7)   File "core.py", line 1, in run
RuntimeError: Engine core initialization failed. See root cause above.
"""
UNKNOWN_FLAG = """\
usage: vllm serve [model_tag] [options]
vllm serve: error: unrecognized arguments: --disable-log-requests
"""
SEQS = """\
ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856). Each decode sequence \
requires one Mamba cache block. Please lower max_num_seqs to at most 856
    For more information visit https://docs.example/2.11/v/value_error
"""
HEALTHY = """\
INFO 11-30 10:00:00 [core.py:97] Initializing a V1 LLM engine with config: speculative_config=None
WARNING: min_p and logit_bias parameters won't work with speculative decoding.
INFO:     Application startup complete.
INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request
"""


def test_the_cause_is_named_not_the_last_line() -> None:
    assert "Free memory on device cuda:0" in fatal_line(MEMORY)
    assert fatal_line(UNKNOWN_FLAG).endswith("unrecognized arguments: --disable-log-requests")
    assert "exceeds available Mamba cache blocks (856)" in fatal_line(SEQS)


def test_a_healthy_log_is_not_fatal() -> None:
    assert fatal_line(HEALTHY) == ""


def test_memory_and_port_of_others_do_not_speak_against_the_profile() -> None:
    assert not is_profile_fault(MEMORY)
    assert not is_profile_fault("OSError: [Errno 98] Address already in use")
    assert is_profile_fault(UNKNOWN_FLAG)


def test_last_words_of_a_dead_process_skip_the_links() -> None:
    log = "KeyError: 'method'\n    For more information visit https://docs.example/x\n"
    assert last_words(log) == "KeyError: 'method'"
    assert last_words("plain words\n\n") == "plain words"
    assert last_words("") == ""
