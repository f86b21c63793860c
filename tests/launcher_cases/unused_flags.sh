#!/bin/bash
FLAGS="--max-num-seqs 4"
SPEC_ARGS=(--speculative-config '{"method":"mtp"}')
exec vllm serve /models/q --port 8000 $FLAGS
