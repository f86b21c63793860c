#!/bin/bash
SEQS=4
source venv/bin/activate
exec vllm serve /models/q --port 8000 --max-num-seqs "$SEQS"
