"""What the other packages share about a job: name, C++ handle and random states; errors and results."""
