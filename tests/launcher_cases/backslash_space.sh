#!/bin/bash
exec vllm serve /models/q --port 8000 \ 
  --max-num-seqs 4
