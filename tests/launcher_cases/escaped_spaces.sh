#!/bin/bash
exec vllm serve /models/my\ q --max-num-seqs 4 --served-model-name a\ b
