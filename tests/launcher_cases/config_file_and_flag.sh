#!/bin/bash
exec vllm serve /models/q --config /srv/v.yaml --max-num-seqs 4
