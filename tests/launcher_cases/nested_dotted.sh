#!/bin/bash
exec vllm serve /models/q --speculative-config.a.b 1 --speculative-config.method eagle --max-num-seqs 4
