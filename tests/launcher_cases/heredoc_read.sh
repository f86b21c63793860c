#!/bin/bash
N=3
read -r -d '' SPEC <<EOF || true
{"method":"mtp","num_speculative_tokens":$N}
EOF
exec vllm serve /models/q --speculative-config "$SPEC" --max-num-seqs 4
