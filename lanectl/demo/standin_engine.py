"""The stand-in's engine: slots, a prefix cache, and the counters that `/metrics` tells."""

from __future__ import annotations

import collections
import threading
import time

from lanectl.demo.standin_flags import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_CHARS = 64
"""A cache block: 16 tokens of about four characters."""
BLOCK_TOKENS = 16
CACHED_BLOCKS_MAX = 1_000_000
PREFILL_S = 4e-6
"""Seconds to prefill one token that is not cached."""
LONG_PROMPT_TOKENS = 1000
COMPANY_S = 0.3
"""How long a lone long prompt waits for a second one, in the mode that breaks with two."""


class Seen:
    """What the engine found when it let a prompt in."""

    __slots__ = ("cached", "floods")

    def __init__(self, cached: int, floods: bool) -> None:
        self.cached = cached
        self.floods = floods


class Engine:
    """All state that requests share. Every method may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.modes = settings.modes
        self.started = time.time()
        self.stopping = False
        self._turn = threading.Condition()
        self._waiting: collections.deque[object] = collections.deque()
        self._running = 0
        self._running_long = 0
        self._blocks: set[int] = set()
        self._recent: collections.deque[frozenset[int]] = collections.deque(maxlen=64)
        self._counts: collections.Counter[str] = collections.Counter()
        self.finished: collections.Counter[str] = collections.Counter()
        self._carry = 0.0

    @property
    def running(self) -> int:
        return self._running

    def enter(self, prompt: str, tokens: int, gone: Callable[[float], bool]) -> Seen | None:
        """Wait for a slot and prefill; None when the client left or the server stops.

        gone: waits up to so many seconds, and tells whether the client hung up. After anything but
        None the caller owes `leave`.
        """
        if not self._take_slot(gone):
            return None
        long = tokens >= LONG_PROMPT_TOKENS
        with self._turn:
            self._running_long += long
        chain = _chain(prompt)
        cached = self._cached(chain) * BLOCK_TOKENS
        if gone(max(tokens - cached, 0) * PREFILL_S) or self.stopping:
            self.leave(tokens)
            return None
        floods = self._floods(chain, tokens, cached, long, gone)
        with self._turn:
            self._counts["queries"] += tokens
            self._counts["hits"] += cached
            self._counts["prompt"] += tokens
            self._counts["iterations"] += 1
            if len(self._blocks) > CACHED_BLOCKS_MAX:
                self._blocks.clear()
            self._blocks.update(chain)
            self._recent.append(frozenset(chain))
        return Seen(cached, floods)

    def leave(self, tokens: int) -> None:
        """Give the slot back."""
        with self._turn:
            self._running -= 1
            self._running_long -= tokens >= LONG_PROMPT_TOKENS
            self._turn.notify_all()

    def step(self, *, drafts_accepted: bool = True) -> None:
        """Count one generated token, and with speculation the draft that it came from."""
        drafted = self.settings.draft_tokens
        with self._turn:
            self._counts["iterations"] += 1
            self._counts["generated"] += 1
            if drafted:
                self._counts["drafts"] += 1
                self._counts["drafted"] += drafted
                # 0.6 of each position's drafts are accepted; a flood accepts nearly nothing.
                self._carry += 0.6 if drafts_accepted else 0.009
                while self._carry >= 1:
                    self._carry -= 1
                    self._counts["accepted"] += drafted

    def _take_slot(self, gone: Callable[[float], bool]) -> bool:
        ticket = object()
        with self._turn:
            self._waiting.append(ticket)
            try:
                while self._running >= self.settings.max_num_seqs or self._waiting[0] is not ticket:
                    self._turn.wait(0.02)
                    if self.stopping or gone(0):
                        return False
                self._running += 1
                return True
            finally:
                self._waiting.remove(ticket)
                self._turn.notify_all()

    def _cached(self, chain: list[int]) -> int:
        """Blocks at the beginning of the prompt that an earlier prompt has left."""
        if not self.settings.prefix_caching:
            return 0
        with self._turn:
            for number, block in enumerate(chain):
                if block not in self._blocks:
                    return number
        # The last token is always computed, so a whole prompt never counts as cached.
        return max(len(chain) - 1, 0)

    def _floods(
        self,
        chain: list[int],
        tokens: int,
        cached: int,
        long: bool,
        gone: Callable[[float], bool],
    ) -> bool:
        modes = self.modes
        if "flood" in modes or ("flood-hot" in modes and cached * 2 >= tokens):
            return True
        if "flood-aba" in modes and self._returns(frozenset(chain)):
            return True
        if "flood-spec-concurrent" in modes and self.settings.speculative and long:
            # Two requests sent at once arrive some milliseconds apart: wait, so that the mode
            # depends on what was sent and not on this machine's load.
            until = time.monotonic() + COMPANY_S
            while self._running_long < 2 and time.monotonic() < until and not gone(0.005):
                pass
            return self._running_long >= 2
        return False

    def _returns(self, blocks: frozenset[int]) -> bool:
        """Whether this prompt was here, and one that shares half of it has come since."""
        with self._turn:
            recent = list(self._recent)
        if blocks not in recent:
            return False
        since = recent[recent.index(blocks) + 1 :]
        return any(other != blocks and 2 * len(other & blocks) >= len(blocks) for other in since)

    def metrics(self) -> str:
        """The text of `/metrics`, in the names of field note 14."""
        settings, counts = self.settings, self._counts
        foreign = "busy" in self.modes
        labels = f'engine="0",model_name="{settings.names[0]}"'
        tokens = settings.blocks * BLOCK_TOKENS
        lines: list[str] = []

        def tell(name: str, kind: str, value: float, more: str = "", base: str = "") -> None:
            heading = f"# TYPE {base or name} {kind}"
            if heading not in lines:
                lines.append(heading)
            lines.append(f"{name}{{{labels}{more}}} {float(value)}")

        tell("vllm:num_requests_running", "gauge", self._running + 2 * foreign)
        tell("vllm:num_requests_waiting", "gauge", len(self._waiting) + foreign)
        tell("vllm:kv_cache_usage_perc", "gauge", self._running / settings.max_num_seqs)
        if "no-cache-counter" not in self.modes:
            tell("vllm:prefix_cache_queries_total", "counter", counts["queries"])
            tell("vllm:prefix_cache_hits_total", "counter", counts["hits"])
        tell("vllm:prompt_tokens_total", "counter", counts["prompt"])
        tell("vllm:generation_tokens_total", "counter", counts["generated"])
        iterations = counts["iterations"] + foreign * int((time.time() - self.started) * 50)
        base = "vllm:iteration_tokens_total"
        tell(f"{base}_sum", "histogram", counts["prompt"] + counts["generated"], base=base)
        lines.append(f'{base}_bucket{{{labels},le="+Inf"}} {float(iterations)}')
        lines.append(f"{base}_count{{{labels}}} {float(iterations)}")
        if settings.speculative:
            tell("vllm:spec_decode_num_drafts_total", "counter", counts["drafts"])
            tell("vllm:spec_decode_num_draft_tokens_total", "counter", counts["drafted"])
            tell("vllm:spec_decode_num_accepted_tokens_total", "counter", counts["accepted"])
            for place in range(settings.draft_tokens):
                share = counts["accepted"] / settings.draft_tokens
                name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                tell(name, "counter", share, f',position="{place}"')
        for reason in ("stop", "length", "abort", "error", "repetition"):
            more = f',finished_reason="{reason}"'
            tell("vllm:request_success_total", "counter", self.finished[reason], more)
        tell(
            "vllm:cache_config_info",
            "gauge",
            1,
            f',block_size="{BLOCK_TOKENS}",cache_dtype="auto"'
            f',enable_prefix_caching="{settings.prefix_caching}"'
            f',kv_cache_max_concurrency="{tokens / settings.max_model_len}"'
            f',kv_cache_size_tokens="{tokens}",num_gpu_blocks="{settings.blocks}"',
        )
        return "\n".join(lines) + "\n"


def _chain(prompt: str) -> list[int]:
    """One hash for each full block of the prompt, each over all that comes before it too."""
    chain: list[int] = []
    above = 0
    for start in range(0, len(prompt) - BLOCK_CHARS + 1, BLOCK_CHARS):
        above = hash((above, prompt[start : start + BLOCK_CHARS]))
        chain.append(above)
    return chain
