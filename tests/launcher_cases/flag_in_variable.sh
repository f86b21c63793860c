#!/bin/bash
F=--max-num-seqs
exec vllm serve /models/q $F 4
