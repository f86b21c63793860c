#!/bin/bash
ARGS=()
for kv in max-num-seqs=4 port=8000; do ARGS+=("--${kv%%=*}" "${kv#*=}"); done
exec vllm serve /models/q "${ARGS[@]}"
