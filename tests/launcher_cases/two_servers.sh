#!/bin/bash
vllm serve /models/a --port 8000 --max-num-seqs 4 &
vllm serve /models/b --port 8001 --max-num-seqs 8 --speculative-config '{"method":"mtp","num_speculative_tokens":3}' &
wait
