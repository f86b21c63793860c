#!/bin/bash
serve() {
  exec vllm serve /models/q "$@"
}
serve --port 8000 --speculative-config '{"method":"mtp","num_speculative_tokens":3}' --max-num-seqs 4
