#!/bin/bash
ARGS=(--max-num-seqs 4 --speculative-config '{"method":"mtp"}')
ARGS=(--max-num-seqs 8)
exec vllm serve /models/q "${ARGS[@]}"
