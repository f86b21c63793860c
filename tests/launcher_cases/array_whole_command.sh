#!/bin/bash
CMD=(vllm serve /models/q)
CMD+=(--max-num-seqs 4)
CMD+=(--speculative-config '{"method":"mtp","num_speculative_tokens":3}')
exec "${CMD[@]}"
