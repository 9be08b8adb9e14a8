"""What a job's loop uses: batches, CUDA graphs, compiled steps."""
