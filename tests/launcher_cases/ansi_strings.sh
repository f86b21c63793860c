#!/bin/bash
exec vllm serve /models/q --speculative-config $'{"method":"mtp","num_speculative_tokens":3}' --max-num-seqs $'4' --served-model-name $'a\tb\x41'
