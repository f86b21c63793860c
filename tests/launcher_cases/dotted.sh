#!/bin/bash
exec vllm serve /models/q --speculative-config.method mtp --speculative-config.num_speculative_tokens=3 --max-num-seqs 4
