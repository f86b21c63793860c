#!/bin/bash
exec vllm serve /models/q --speculative-config '{"method":"mtp","num_speculative_tokens":3}' --speculative-config.method ngram --max_num_seqs=4
