#!/bin/bash
for o in "--max-num-seqs 4" "--port 8000"; do ARGS+=($o); done
exec vllm serve /models/q "${ARGS[@]}"
