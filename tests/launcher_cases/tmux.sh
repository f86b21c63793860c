#!/bin/bash
tmux new-session -d -s lane 'vllm serve /models/q --max-num-seqs 4'
