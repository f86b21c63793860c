#!/bin/bash
exec python3 -u -m vllm.entrypoints.openai.api_server --model=/models/q --max-num-seqs=4 -sc='{"method":"mtp","num_speculative_tokens":3}'
