#!/bin/bash
nohup vllm serve /models/q --speculative-config '{"method":"mtp","num_speculative_tokens":3}' --max-num-seqs 4 > log 2>&1 &
