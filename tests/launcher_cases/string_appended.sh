#!/bin/bash
ARGS="--max-num-seqs 4"
[ "${MTP:-1}" = 1 ] && ARGS="$ARGS --speculative-config {\"method\":\"mtp\",\"num_speculative_tokens\":3}"
exec vllm serve /models/q $ARGS
