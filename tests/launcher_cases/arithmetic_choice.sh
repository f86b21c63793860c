#!/bin/bash
MTP=${MTP:-1}
(( MTP )) && SPEC=(--speculative-config '{"method":"mtp","num_speculative_tokens":3}') || SPEC=()
exec vllm serve /models/q "${SPEC[@]}" --max-num-seqs 4
