/// The CPU's kernels on one thread while this object lives: results that do not depend on the machine, and stream
/// threads that do not take each other's cores.
#pragma once

#include <ATen/Parallel.h>
#include <omp.h>

/// MKL's own, for the calling thread; returns the former number. Absent from torch without MKL.
extern "C" int MKL_Set_Num_Threads_Local(int threads) __attribute__((weak));

namespace emulator {

class OneThread {
 public:
  /// A thread's first use of torch's threads sets both numbers to torch's, so this asks first.
  OneThread() : threads_(at::get_num_threads()) {
    omp_set_num_threads(1);
    mkl_threads_ = MKL_Set_Num_Threads_Local != nullptr ? MKL_Set_Num_Threads_Local(1) : 0;
  }
  ~OneThread() {
    omp_set_num_threads(threads_);
    if (MKL_Set_Num_Threads_Local != nullptr) {
      MKL_Set_Num_Threads_Local(mkl_threads_);
    }
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_;
  int mkl_threads_;
};

}  // namespace emulator
