#!/bin/bash
exec nice -n 5 stdbuf -oL timeout 99 numactl --cpunodebind=0 --membind=0 vllm serve /models/q --speculative-config='{"method":"mtp","num_speculative_tokens":3}' --max-num-seqs=4
