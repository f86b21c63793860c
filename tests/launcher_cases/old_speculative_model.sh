#!/bin/bash
exec python -m vllm.entrypoints.openai.api_server --model /models/q --speculative-model /m/draft --num-speculative-tokens 5 --max-num-seqs 4
