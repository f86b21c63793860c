"""doctor: is the server told to call tools, does its API answer, and what is known to go wrong?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lanectl.app.diagnosis import Diagnosis, NotKnown, error, info, need, ok, unknown, warning
from lanectl.app.doctor_facts import Facts
from lanectl.core.hazards import Context, hazards, version_tuple
from lanectl.core.vllm_flags import CONFIG, MAX_NUM_SEQS
from lanectl.ports import Answer, Metrics

Found = Iterator[Diagnosis]

_MAXIMUM = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d,.]+?)x")
_MAMBA = re.compile(r"max_num_seqs \((\d+)\) exceeds available Mamba cache blocks \((\d+)\)")
_ENOUGH_DRAFTS = 200
_COLLAPSED = 0.1

# ----------------------------------------------------------------------------------- tool calls


def tool_call_flags(facts: Facts) -> Found:
    flags = need(facts.server).flags
    missing = [f for f in ("--enable-auto-tool-choice", "--tool-call-parser") if f not in flags]
    if not missing:
        yield ok(f"tool calls are parsed by {flags['--tool-call-parser']}")
    elif CONFIG in flags:
        yield unknown(
            f"{' and '.join(missing)} may stand in the file after {CONFIG}",
            "put both on the command line",
        )
    else:
        yield error(
            f"the server is started without {' and '.join(missing)}: it returns no tool calls",
            "add `--enable-auto-tool-choice --tool-call-parser NAME` to the launcher, NAME as the "
            f"model's card has it, then `lanectl adopt {facts.lane.name}`",
        )


def reasoning_parser(facts: Facts) -> Found:
    said = need(facts.server).flags.get("--reasoning-parser")
    if said is not None:
        yield ok(f"thinking is parsed by {said}")
    else:
        yield info(
            "no --reasoning-parser: where the model thinks, its thoughts stay in the content",
            "add --reasoning-parser NAME, as the model's card names it",
        )


def known_hazards(facts: Facts) -> Found:
    settings = need(facts.server)
    caching = facts.metrics.cache_config.get("enable_prefix_caching") if facts.metrics else None
    context = Context(
        version=facts.version,
        prefix_caching=None if caching is None else caching.lower() == "true",
        model_config=facts.model_config,
        running=facts.server_is_live,
    )
    found = hazards(settings, context)
    for hazard in found:
        yield Diagnosis(
            hazard.severity, hazard.message, hazard.mend, hazard.source, f"hazard-{hazard.code}"
        )
    if settings.speculative == "unknown":
        yield unknown(
            "whether the server speculates cannot be read, so neither can the hazards of that",
            f"lanectl launcher show {facts.lane.launcher}",
        )
    elif not found:
        yield ok("no hazard is known of this configuration")


# ------------------------------------------------------------------------------------------ API


def _expected_up(facts: Facts) -> bool | None:
    """Whether the API ought to answer by now; None where nobody knows whether it runs."""
    if isinstance(facts.proof, NotKnown):
        return None
    main = facts.proof.main
    return main is not None and facts.now - main.started > facts.lane.ready_timeout_s


def health(facts: Facts) -> Found:
    answer, lane = facts.health, facts.lane
    if answer.status in (200, 401, 403):
        yield ok("/health answers; that says nothing of the engine, a smoke does")
    elif answer.status is not None:
        yield error(
            f"/health answers {answer.status}"
            + (": the engine is dead" if answer.status == 503 else ""),
            f"lanectl restart {lane.name}",
        )
    elif isinstance(facts.proof, NotKnown):
        yield unknown(
            f"{lane.api} does not answer ({answer.error}), and supervisord does not say whether "
            "it should",
            "mend what `supervisord` and `program` say here first",
        )
    elif facts.proof.main is None:
        yield unknown(f"{lane.api} does not answer, as {lane.program} does not run")
    elif _expected_up(facts) or facts.proof.listening:
        yield error(
            f"{lane.program} runs and {lane.api} does not answer: {answer.error}",
            f"look at its log; correct `api` in lanectl.toml or lanectl restart {lane.name}",
        )
    else:
        yield info(f"{lane.program} is still starting: {lane.api} does not answer yet")


def _answers(facts: Facts) -> None:
    if facts.health.status is None:
        need(NotKnown(f"{facts.lane.api} does not answer: {facts.health.error}"))


def api_key(facts: Facts) -> Found:
    """Whether the lane accepts our key, and whether its own can be read by others."""
    _answers(facts)
    lane, models = facts.lane, facts.models
    if isinstance(models, Answer) and models.status in (401, 403):
        has = f"the key in {lane.api_key_file}" if lane.api_key_file else "a request without a key"
        yield error(
            f"the lane answers {models.status} to {has}",
            f"set `api_key_file` of lane {lane.name} to a file (mode 0600) with the lane's key",
        )
    else:
        yield ok("the lane accepts our requests")


def api_key_shown(facts: Facts) -> Found:
    if "--api-key" in need(facts.server).flags:
        yield warning(
            "--api-key stands on the command line, where every user of the host reads it (`ps`)",
            "remove it and set VLLM_API_KEY, from a file of mode 0600 that the launcher reads",
        )
    else:
        yield ok("no API key stands on the command line")


def model(facts: Facts) -> Found:
    _answers(facts)
    lane, models = facts.lane, facts.models
    if isinstance(models, Answer):
        need(NotKnown(f"/v1/models gives no list (status {models.status})"))
        return
    names = [one.id for one in models]
    if not names:
        yield error("/v1/models lists no model", f"lanectl restart {lane.name}")
    elif lane.model is None or lane.model in names:
        yield ok(f"the lane serves {', '.join(names)}")
    else:
        yield error(
            f"the lane serves {', '.join(names)}, not {lane.model}",
            f'set `model = "{names[0]}"` of lane {lane.name} in lanectl.toml',
        )


def version(facts: Facts) -> Found:
    _answers(facts)
    if facts.version is None:
        yield unknown("/version gives none", "hazards of one version are not told then")
    elif version_tuple(facts.version) is None:
        yield unknown(f"/version says {facts.version}, which is no version number")
    else:
        yield ok(f"vLLM {facts.version}")


def _metrics(facts: Facts) -> Metrics:
    _answers(facts)
    return need(facts.metrics or NotKnown("/metrics cannot be read", "start it with metrics on"))


def metrics(facts: Facts) -> Found:
    _answers(facts)
    found = facts.metrics
    if found is None or found.load is None:
        what = "cannot be read" if found is None else "lack the gauges of requests"
        yield warning(
            f"the lane's metrics {what}: nobody can see whether it is drained, so a switch is "
            "refused",
            "remove --disable-log-stats from the launcher, or switch with --cut",
        )
    else:
        yield ok(f"{found.running:.0f} requests run, {found.waiting:.0f} wait")


def prefix_cache_counters(facts: Facts) -> Found:
    found = _metrics(facts)
    if found.prefix_cache_queries is None or found.prefix_cache_hits is None:
        yield info(
            "the lane counts no prefix-cache hits: the hot probe is judged by its reply alone"
        )
    else:
        yield ok(
            f"{found.prefix_cache_hits:.0f} of {found.prefix_cache_queries:.0f} tokens asked of "
            "the prefix cache were hits"
        )


def speculation(facts: Facts) -> Found:
    """Off is proven at run time only: a flag says what was asked for."""
    found, asked = _metrics(facts), need(facts.server).speculative
    if found.speculative is None or asked == "unknown":
        need(NotKnown("flags or metrics do not tell whether the server speculates"))
    on = asked is not False
    if found.speculative and not on:
        yield error(
            "the server speculates although its flags do not ask for it",
            f"lanectl restart {facts.lane.name}, then look at the log for `speculative_config=`",
        )
    elif on and not found.speculative:
        yield warning(
            "speculation is asked for, and the server shows no metric of it",
            "look at the log for `speculative_config=`",
        )
    else:
        yield ok(f"flags and metrics agree: speculation is {'on' if on else 'off'}")


def draft_acceptance(facts: Facts) -> Found:
    """A collapse of the acceptance rate came before garbage in reports."""
    found = _metrics(facts)
    drafts, accepted = found.spec_draft_tokens, found.spec_accepted_tokens
    if not found.speculative or drafts is None or accepted is None:
        yield ok("no drafts are counted")
    elif drafts >= _ENOUGH_DRAFTS and accepted / drafts < _COLLAPSED:
        yield warning(
            f"only {accepted / drafts:.1%} of {drafts:.0f} draft tokens were accepted: reported "
            "as an early sign of degenerate replies",
            f"lanectl smoke {facts.lane.name} --gate switch; restart if it fails",
            "vllm#36872",
        )
    elif drafts:
        yield ok(f"{accepted / drafts:.1%} of {drafts:.0f} draft tokens were accepted")
    else:
        yield ok("no draft token yet")


def concurrency(facts: Facts) -> Found:
    """`max_num_seqs` against what the cache holds; both numbers are told."""
    asked = need(facts.server).max_num_seqs
    log = facts.log if isinstance(facts.log, str) else ""
    refused = _MAMBA.search(log)
    if refused and facts.metrics is None:
        yield error(
            f"{MAX_NUM_SEQS} {refused[1]} is above the {refused[2]} Mamba cache blocks",
            f"a profile with `max_num_seqs = {refused[2]}` or less",
            "vllm#49064",
        )
        return
    holds, length = _holds(facts.metrics, log)
    if holds is None:
        need(NotKnown("neither metrics nor log say how many requests the cache holds"))
        return
    full = f"{holds:.2f} requests of full length" + (f" ({length} tokens)" if length else "")
    said = "not set" if asked is None else str(asked)
    if holds < 1:
        yield warning(
            f"the cache holds {full}: not even one",
            "lower --max-model-len or raise --gpu-memory-utilization",
        )
    elif isinstance(asked, int) and asked > holds:
        yield info(
            f"{MAX_NUM_SEQS} is {said}, the cache holds {full}: long requests wait or are "
            "preempted",
            f"a profile with `max_num_seqs = {max(int(holds), 1)}` if they must not",
            "vllm#49064",
        )
    else:
        yield ok(f"{MAX_NUM_SEQS} is {said}, the cache holds {full}")


def _holds(metrics: Metrics | None, log: str) -> tuple[float | None, str]:
    """How many requests of full length the cache holds: the engine's label, else its log."""
    said = metrics.cache_config.get("kv_cache_max_concurrency") if metrics else None
    found = _MAXIMUM.findall(log)
    if said is None and not found:
        return None, ""
    length, number = found[-1] if found else ("", "")
    try:
        return float(said if said is not None else number.replace(",", "")), length
    except ValueError:
        return None, ""
