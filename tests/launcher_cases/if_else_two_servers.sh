#!/bin/bash
if nvidia-smi >/dev/null 2>&1; then
  exec vllm serve /models/q --max-num-seqs 4 --speculative-config '{"method":"mtp","num_speculative_tokens":3}'
else
  exec vllm serve /models/q --device cpu --max-num-seqs 1
fi
