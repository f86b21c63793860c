#!/bin/bash
VLLM_ARGS=(
  --port 8000   # the port
  --max-num-seqs 4
  # speculation
  --speculative-config '{"method":"mtp","num_speculative_tokens":3}'
)
VLLM_ARGS+=(--enable-auto-tool-choice)
exec vllm serve /models/q "${VLLM_ARGS[@]}"
