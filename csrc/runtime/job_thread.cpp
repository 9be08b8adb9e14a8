#include "runtime/job_thread.h"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <pthread.h>

#include <mutex>
#include <utility>

namespace torchshare {
namespace {

thread_local constinit bool belongs_to_job = false;

constinit std::mutex pools;  // guards torch's thread pools
constinit bool has_shared_pool = false;

// Held around a fork, so that it is free in the child, whose thread belongs to no job.
void lock_pools() {
  pools.lock();
}

void unlock_pools() {
  pools.unlock();
}

void begin_forked_child() {
  unlock_pools();
  belongs_to_job = false;
}

/// Called before the thread's priority is lowered, because other threads may wait for the lock.
ThreadPriority& with_threads_set(ThreadPriority& priority, int intra_op_threads) {
  set_intra_op_threads(intra_op_threads);
  return priority;
}

}  // namespace

AutogradOnThread::AutogradOnThread()
    : was_multithreaded_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

AutogradOnThread::~AutogradOnThread() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(was_multithreaded_);
}

JobThread::JobThread(Device& device, ThreadPriority& priority, const DeviceRequest& request, OpContext& job,
                     int intra_op_threads, std::shared_ptr<MemoryOwner> memory)
    : priority_(with_threads_set(priority, intra_op_threads)),
      device_(device.enter(request)),
      context_(job),
      memory_(std::move(memory)) {}

void become_jobs_thread() {
  belongs_to_job = true;
}

bool is_jobs_thread() {
  return belongs_to_job;
}

void change_intra_op_threads(int threads) {
  if (at::get_num_threads() != threads) {
    set_intra_op_threads(threads);
  }
}

void set_intra_op_threads(int threads) {
  static const int once = pthread_atfork(&lock_pools, &unlock_pools, &begin_forked_child);
  (void)once;
  std::lock_guard lock(pools);
  at::get_num_threads();  // else the first op of this thread sets the number that any thread has set last
  // torch makes the pool of QNNPACK and NNPACK with the first number, and keeps it. Its threads would have no job's
  // priority, and with glibc 2.43 a forked child that exits waits forever for those of its parent: make it without any.
  if (!std::exchange(has_shared_pool, true)) {
    at::set_num_threads(1);
  }
  at::set_num_threads(threads);
}

}  // namespace torchshare
