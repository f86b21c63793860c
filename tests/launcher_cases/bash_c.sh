#!/bin/bash
exec bash -c 'exec vllm serve /models/q --max-num-seqs 4 --port 8000'
