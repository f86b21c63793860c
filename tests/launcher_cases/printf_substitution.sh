#!/bin/bash
M=mtp; N=3
exec vllm serve /models/q --max-num-seqs 4 --speculative-config "$(printf '{"method":"%s","num_speculative_tokens":%d}' "$M" "$N")"
