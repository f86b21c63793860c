#!/usr/bin/env bash
# The careful way by hand: check, back up, stage, compare, replace, restart, wait, one tool call.
# usage: switch.sh LAUNCHER NEW SUPERVISORD_CONF PROGRAM API MODEL
set -euo pipefail
launcher=$1 new=$2 conf=$3 program=$4 api=$5 model=$6

bash -n "$new"
cp -p "$launcher" "$launcher.bak-$(date -u +%Y%m%d-%H%M%S)"
staged=$(mktemp "$launcher.XXXXXX")
cp "$new" "$staged"
chmod --reference="$launcher" "$staged"
[[ $(sha256sum <"$staged") == "$(sha256sum <"$new")" ]]
mv "$staged" "$launcher"

supervisorctl -c "$conf" restart "$program"

deadline=$((SECONDS + 60))
until curl --silent --fail --output /dev/null --max-time 2 "${api%/v1}/health"; do
    ((SECONDS < deadline))
    sleep 0.02
done

reply=$(curl --silent --show-error --fail --max-time 30 "$api/chat/completions" \
    --header 'Content-Type: application/json' --data @- <<JSON
{
  "model": "$model",
  "max_tokens": 512,
  "messages": [{"role": "user", "content": "Call get_status for the service lane."}],
  "tools": [{"type": "function", "function": {"name": "get_status", "parameters": {
    "type": "object", "required": ["service"], "properties": {"service": {"type": "string"}}}}}]
}
JSON
)
grep --quiet '"name": *"get_status"' <<<"$reply"
