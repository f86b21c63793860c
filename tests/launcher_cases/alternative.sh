#!/bin/bash
MTP=1
exec vllm serve /models/q ${MTP:+--speculative-config '{"method":"mtp","num_speculative_tokens":3}'} --max-num-seqs 4
