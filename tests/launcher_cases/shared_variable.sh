#!/bin/bash
N=4
exec vllm serve /models/q --max-num-seqs $N --max-loras $N
