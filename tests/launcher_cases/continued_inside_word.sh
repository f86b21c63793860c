#!/bin/bash
exec vllm serve /models/q --max-num-\
seqs 4 --speculative-con\
fig '{"method":"mtp","num_speculative_tokens":3}'
