#!/bin/bash
start() { local port="$1"; shift; vllm serve /models/q --port "$port" "$@" & }
start 8000 --max-num-seqs 4 --speculative-config '{"method":"mtp","num_speculative_tokens":3}'
start 8001 --max-num-seqs 2
wait
