#!/bin/bash
exec env VLLM_USE_V1=1 CUDA_VISIBLE_DEVICES=0 vllm serve /models/q --speculative-config '{"method":"mtp","num_speculative_tokens":3}' --max-num-seqs 4
