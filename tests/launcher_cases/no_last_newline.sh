#!/bin/bash
exec vllm serve /models/q --max-num-seqs 4