#!/bin/bash
set -euo pipefail
IFS=$'\n\t'
ARGS="--max-num-seqs 4"
exec vllm serve /models/q $ARGS
