#!/bin/bash
exec vllm serve /models/q --config /srv/v.yaml --port 8000
