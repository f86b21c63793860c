#!/bin/bash
cd /tmp && exec vllm serve /models/q --max-num-seqs 4 || echo failed
