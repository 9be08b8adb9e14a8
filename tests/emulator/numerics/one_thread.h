/// The CPU's kernels on one thread while this object lives: results that do not depend on the machine, and stream
/// threads that do not take each other's cores.
#pragma once

#include <omp.h>

namespace emulator {

class OneThread {
 public:
  OneThread() : threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(threads_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_;
};

}  // namespace emulator
