#!/bin/bash
CMD="vllm serve /models/q --max-num-seqs 4 --speculative-config '{"method":"mtp","num_speculative_tokens":3}'"
eval "exec $CMD"
