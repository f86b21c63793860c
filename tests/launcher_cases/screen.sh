#!/bin/bash
screen -dmS lane vllm serve /models/q --max-num-seqs 4
