#!/bin/bash
set -- --port 8000 --max-num-seqs 4
set -- "$@" --speculative-config '{"method":"mtp","num_speculative_tokens":3}'
exec vllm serve /models/q "$@"
