#!/bin/bash
printf -v SPEC '{"method":"%s","num_speculative_tokens":%d}' mtp 3
exec vllm serve /models/q --max-num-seqs 4 --speculative-config "$SPEC"
