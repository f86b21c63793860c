#!/bin/bash
exec vllm serve /models/q >log 2>&1 --speculative-config '{"method":"mtp","num_speculative_tokens":3}' --max-num-seqs 4
