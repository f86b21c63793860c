#!/bin/bash
N=3
exec vllm serve /models/q --speculative-config '{"method":"mtp","num_speculative_tokens":'"$N"'}' --max-num-seqs 4
