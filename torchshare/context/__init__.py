"""What the other packages know of a job: its name, its C++ half, its random states; errors and results."""
