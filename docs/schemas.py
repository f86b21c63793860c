"""The JSON documents of the commands, as JSON Schema (2020-12). `make docs` writes docs/schemas/.

tests/integration/test_schemas.py holds the documents of real runs against them. Fields may be added
to a document; those named here stay.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
BOOL: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}
SHA256: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
OUTCOME: Schema = {"enum": ["passed", "failed", "error", "inconclusive"]}
CLASS: Schema = {
    "enum": [
        "ok",
        "degenerate",
        "budget_exhausted",
        "truncated",
        "no_tool_call",
        "wrong_tool",
        "invalid_arguments",
        "tool_text_leak",
        "empty",
        "http_error",
        "stream_aborted",
        "stalled",
        "timed_out",
        "client_error",
        "unreachable",
        "wrong_process",
    ]
}
TERMINAL = ["committed", "rolled-back", "aborted", "degraded", "unchanged", "dry-run"]
WORKING = [
    "preparing",
    "draining",
    "installing",
    "restarting",
    "verifying",
    "reverting",
    "restoring",
    "confirming",
]


def null_or(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def record(**fields: Schema) -> Schema:
    """An object with these fields, all of them required; more may be there."""
    names = {name.rstrip("_"): schema for name, schema in fields.items()}
    return {"type": "object", "properties": names, "required": list(names)}


SIDE = record(profile=null_or(STRING), sha256=SHA256, stable=BOOL)
FINDING = record(
    severity={"enum": ["error", "warning", "info"]}, code=STRING, line=INTEGER, message=STRING
)
PROBE = record(name=STRING, class_=CLASS, outcome=OUTCOME, elapsed_s=NUMBER, detail=STRING)
VERDICT = record(outcome=OUTCOME, class_=CLASS, probes=array(PROBE))
EVENT = record(
    seq=INTEGER,
    phase={"enum": WORKING + TERMINAL[:4]},
    outcome=null_or({"enum": ["ok", "failed", "crashed"]}),
    at=TIME,
    elapsed_s=null_or(NUMBER),
    detail=STRING,
)
SPECULATIVE: Schema = {"anyOf": [{"type": "object"}, {"const": False}, {"const": "unknown"}]}
SEQS: Schema = {"anyOf": [INTEGER, {"type": "null"}, {"const": "unknown"}]}
SWITCH = record(
    switch=null_or(STRING),
    lane=STRING,
    phase={"enum": TERMINAL},
    from_=SIDE,
    to=SIDE,
    verdict=null_or(VERDICT),
    confirmation=null_or({"type": "object"}),
    receipt={"type": "object"},
    events=array(EVENT),
    reason=STRING,
    next=STRING,
)

SCHEMAS: dict[str, Schema] = {
    "error": record(error=record(code=STRING, exit=INTEGER, message=STRING, next=STRING)),
    "switch": SWITCH,
    "rollback": SWITCH,
    "restart": SWITCH,
    "adopt": record(
        lane=STRING,
        profile=STRING,
        sha256=SHA256,
        stable=BOOL,
        reason=STRING,
        verdict=null_or(VERDICT),
        launcher=STRING,
        followed_link=BOOL,
        program=null_or(record(pid=INTEGER, started=TIME)),
        speculative=SPECULATIVE,
        max_num_seqs=SEQS,
        findings=array(FINDING),
    ),
    "profiles": array(
        record(
            profile=STRING,
            speculative={"anyOf": [{"type": "object"}, {"const": False}, {"type": "null"}]},
            max_num_seqs=null_or(INTEGER),
            model=null_or(STRING),
            flags={"type": "object"},
            env={"type": "object"},
            script=null_or(STRING),
            note=STRING,
            sha256=null_or(SHA256),
            current=BOOL,
            stable=BOOL,
            barred=BOOL,
            refused=null_or(STRING),
        )
    ),
    "diff": record(lane=STRING, profile=STRING, from_=SHA256, to=SHA256, same=BOOL, diff=STRING),
    "smoke": record(
        gate={"enum": ["quick", "switch", "soak"]},
        lane=STRING,
        outcome=OUTCOME,
        class_=CLASS,
        probes=array(PROBE),
        foreign_load=null_or(NUMBER),
    ),
    "status": array(
        record(
            lane=STRING,
            profile=null_or(STRING),
            note=STRING,
            sha256=null_or(SHA256),
            stable=null_or(BOOL),
            drift=null_or(BOOL),
            program=null_or(record(state=STRING, pid=null_or(INTEGER), started=null_or(TIME))),
            ready=null_or(BOOL),
            running=null_or(NUMBER),
            waiting=null_or(NUMBER),
            gpu=null_or(array({"type": "object"})),
            quarantined=null_or(STRING),
            unfinished=null_or(STRING),
            probation=null_or(TIME),
            last_smoke=null_or(record(at=TIME, gate=STRING, outcome=OUTCOME, class_=CLASS)),
            last_alert=null_or(record(at=TIME, title=STRING, body=STRING)),
            problem=null_or(STRING),
        )
    ),
    "history": array(
        record(
            switch=STRING,
            at=TIME,
            from_=SIDE,
            to=SIDE,
            phase={"enum": WORKING + TERMINAL[:4]},
            reason=STRING,
            who=STRING,
        )
    ),
    "doctor": array(
        record(
            lane=null_or(STRING),
            checks=array(
                record(
                    check=STRING,
                    severity={"enum": ["ok", "info", "warning", "error", "unknown"]},
                    message=STRING,
                    mend=STRING,
                )
            ),
        )
    ),
    "repair": record(lane=STRING, repair=STRING, done=BOOL),
    "quarantine": record(lane=STRING, quarantined=STRING, stopped=null_or({"type": "object"})),
    "release": record(
        lane=STRING,
        was_quarantined=null_or(STRING),
        unbarred=array(SHA256),
        verdict=null_or(VERDICT),
    ),
    "launcher-show": record(
        editable=BOOL,
        server=null_or(record(line=INTEGER, argv=array(STRING), port=null_or(INTEGER))),
        servers=array({"type": "object"}),
        speculative=SPECULATIVE,
        max_num_seqs=SEQS,
        container=BOOL,
        why_not=null_or(STRING),
        findings=array(FINDING),
    ),
    "launcher-edit": record(text=STRING, sha256=SHA256),
}
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def document(name: str) -> Schema:
    return {"$schema": DIALECT, "title": f"lanectl {name} --json", **SCHEMAS[name]}
