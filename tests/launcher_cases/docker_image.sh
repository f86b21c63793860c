#!/bin/bash
exec docker run --rm --gpus all -p 8000:8000 vllm/vllm-openai:latest --model /models/q --max-num-seqs 4
