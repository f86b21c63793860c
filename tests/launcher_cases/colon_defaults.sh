#!/bin/bash
: "${SEQS:=4}"
: ${PORT:=8000}
exec vllm serve /models/q --max-num-seqs "$SEQS" --port $PORT
