#!/bin/bash
ARGS=(--max-num-seqs 4)
if [ -f /srv/mtp ]; then
  ARGS+=(--speculative-config '{"method":"mtp","num_speculative_tokens":3}')
fi
exec vllm serve /models/q "${ARGS[@]}"
