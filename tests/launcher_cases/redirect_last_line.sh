#!/bin/bash
exec vllm serve /models/q --port 8000 \
  --max-num-seqs 4 \
  --speculative-config '{"method":"mtp","num_speculative_tokens":3}' \
  >> log 2>&1
