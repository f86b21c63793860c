#!/bin/bash
vllm serve /models/q --speculative-config '{"method":"mtp","num_speculative_tokens":3}' --max-num-seqs 4 2>&1 | tee -a log
