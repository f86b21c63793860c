#!/bin/bash
exec vllm serve /models/q --speculative_config '{"method":"mtp","num_speculative_tokens":3}' --max_num_seqs 4
