#!/bin/bash
until vllm serve /models/q --max-num-seqs 4; do sleep 1; done
