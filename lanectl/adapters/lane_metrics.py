"""`/metrics` of a vLLM server, read under the names of old and new versions (field note 14)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable

from lanectl.ports import Metrics

# Newest name first. Counters are told with `_total`, which the oldest servers leave out.
_NAMES: dict[str, tuple[str, ...]] = {
    "running": ("num_requests_running",),
    "waiting": ("num_requests_waiting",),
    "kv_cache_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "prefix_cache_queries": ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    "prefix_cache_hits": ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
    "iteration_tokens": ("iteration_tokens_total_count",),
    "spec_draft_tokens": ("spec_decode_num_draft_tokens_total",),
    "spec_accepted_tokens": ("spec_decode_num_accepted_tokens_total",),
}
_PREFIX = "vllm:"
_FINISHED = ("request_success_total", "request_success")
_CACHE_CONFIG = "cache_config_info"
_SPECULATION = "spec_decode"
_WANTED = frozenset(
    {
        name
        for names in _NAMES.values()
        for each in names
        for name in (each, each.removesuffix("_total"))
    }
    | {*_FINISHED, _CACHE_CONFIG}
)


def read_metrics(text: str) -> Metrics | None:
    """The metrics, summed over engines; None where the text holds none of vLLM's.

    The share of the cache in use is that of the fullest engine. Values that are no numbers count
    as not told.
    """
    lines, names = _wanted_lines(text)
    if not names:
        return None
    values: defaultdict[str, list[float]] = defaultdict(list)
    finished: dict[str, float] = {}
    cache_config: dict[str, str] = {}
    for name, labels, value in _samples(lines):
        if name == _CACHE_CONFIG:
            cache_config |= labels
        elif name in _FINISHED and (reason := labels.get("finished_reason")):
            finished[reason] = finished.get(reason, 0.0) + value
        elif not math.isnan(value):
            values[name].append(value)

    def told(field: str, total: Callable[[Iterable[float]], float] = sum) -> float | None:
        for each in _NAMES[field]:
            for name in (each, each.removesuffix("_total")):
                if values.get(name):
                    return total(values[name])
        return None

    return Metrics(
        running=told("running"),
        waiting=told("waiting"),
        kv_cache_usage=told("kv_cache_usage", max),
        prefix_cache_queries=told("prefix_cache_queries"),
        prefix_cache_hits=told("prefix_cache_hits"),
        iteration_tokens=told("iteration_tokens"),
        spec_draft_tokens=told("spec_draft_tokens"),
        spec_accepted_tokens=told("spec_accepted_tokens"),
        speculative=any(name.startswith(_SPECULATION) for name in names),
        requests_finished=finished,
        cache_config=cache_config,
    )


def _wanted_lines(text: str) -> tuple[str, set[str]]:
    """The sample lines that we read, and the names of all of vLLM's, without their prefix.

    A server has thousands of lines, most of them buckets of histograms: parsing is what costs.
    """
    lines: list[str] = []
    names: set[str] = set()
    for line in text.splitlines():
        if not line.startswith(_PREFIX):
            continue
        name = line[len(_PREFIX) :].partition("{")[0].partition(" ")[0]
        names.add(name)
        if name in _WANTED:
            lines.append(line)
    return "\n".join(lines) + "\n", names


def _samples(lines: str) -> Iterable[tuple[str, dict[str, str], float]]:
    """The samples; those after a line that cannot be read are lost."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(lines):
            for sample in family.samples:
                yield sample.name.removeprefix(_PREFIX), dict(sample.labels), sample.value
    except (ValueError, KeyError, IndexError):
        return
