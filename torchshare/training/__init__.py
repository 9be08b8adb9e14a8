"""The parts of a job's training loop: batches, CUDA graphs, compiled steps."""
