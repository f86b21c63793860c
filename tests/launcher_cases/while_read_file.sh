#!/bin/bash
ARGS=()
while read -r l; do ARGS+=("$l"); done < flags.txt
exec vllm serve /models/q "${ARGS[@]}" --max-num-seqs 4
