#include "runtime/job_thread.h"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>

#include <utility>

#include "gate/op_hook.h"

namespace torchshare {
namespace {

OpContext& with_hook_installed(OpContext& job) {
  install_op_hook();
  return job;
}

}  // namespace

// Autograd has one worker thread per device for all jobs; a lower job that waits on it would block the primary's
// backward. With multithreading off, each job's backward runs on its own thread.
JobThread::JobThread(Device& device, const Seat& seat, OpContext& job, int intra_op_threads,
                     std::shared_ptr<MemoryOwner> memory)
    : device_(device.enter(seat)),
      autograd_multithreading_(c10::AutogradState::get_tls_state().get_multithreading_enabled()),
      context_(with_hook_installed(job)),
      memory_(std::move(memory)) {
  at::set_num_threads(intra_op_threads);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

JobThread::~JobThread() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(autograd_multithreading_);
}

}  // namespace torchshare
