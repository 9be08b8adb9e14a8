#include "runtime/serving_threads.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "runtime/job_thread.h"

namespace torchshare {

ServingThread::ServingThread(const JobParts& job, OpContext& own, at::Generator generator,
                             std::shared_ptr<MemoryOwner> memory, std::shared_ptr<DeviceStream> stream,
                             at::Generator device_generator)
    : OpContext(own.slot(), std::move(generator)),
      job_(job),
      own_(own),
      language_(job.language.for_thread()),
      stream_(std::move(stream)),
      member_(job.runtime.gate, slot_, stream_) {
  slot_.interrupts.fetch_or(kServes);
  slot_.idle.store(true);
  memory_ = std::move(memory);
  checks_owners_ = stream_ != nullptr;
  device_generator_ = std::move(device_generator);
}

void ServingThread::handle_interrupts() {
  own_.begin_served_op();
  Gate& gate = job_.runtime.gate;
  bool is_admitted = false;
  while (!is_admitted) {
    yield_point();
    is_admitted = !gate.is_lower(slot_) || gate.try_enter(slot_);
    if (!is_admitted) {
      without_lock(*language_, [&] { is_admitted = gate.wait_turn(slot_); });
    }
  }
}

void ServingThread::yield_point() {
  Slot& own = job_.slot;
  while (const std::uint32_t interrupts =
             own.interrupts.load(std::memory_order_acquire) & (kLeaves | kSuspend | kHold | kFork)) {
    if (!language_->may_stop()) {
      return;
    }
    if ((interrupts & kLeaves) != 0) {
      language_->raise_cancelled(fmt::format("job '{}' was cancelled or has ended", job_.spec.name));
    }
    const Interrupt bit = (interrupts & kSuspend) != 0 ? kSuspend : (interrupts & kHold) != 0 ? kHold : kFork;
    without_lock(*language_, [&] { job_.runtime.gate.wait_while(own, bit); });
  }
}

void ServingThread::synchronize() {
  if (stream_ != nullptr) {
    without_lock(*language_, [this] { stream_->synchronize(); });
  }
}

void ServingThreads::open(std::shared_ptr<MemoryOwner> memory, std::shared_ptr<DeviceStream> stream,
                          at::Generator device_generator) {
  std::lock_guard lock(mutex_);
  is_open_ = true;
  memory_ = std::move(memory);
  stream_ = std::move(stream);
  device_generator_ = std::move(device_generator);
}

void ServingThreads::close() {
  std::vector<std::unique_ptr<ServingThread>> free;  // leave the gate without the lock
  std::lock_guard lock(mutex_);
  is_open_ = false;
  free.swap(free_);
  memory_.reset();
  stream_.reset();
  device_generator_ = {};
}

std::unique_ptr<ServingThread> ServingThreads::take() {
  std::uint64_t number = 0;
  std::shared_ptr<MemoryOwner> memory;
  std::shared_ptr<DeviceStream> stream;
  at::Generator device_generator;
  {
    std::lock_guard lock(mutex_);
    if (!is_open_) {
      throw std::runtime_error(fmt::format("job '{}' answers no requests: it does not run", job_.spec.name));
    }
    if (!free_.empty()) {
      auto thread = std::move(free_.back());
      free_.pop_back();
      return thread;
    }
    number = ++made_;
    memory = memory_;
    stream = stream_;
    device_generator = device_generator_;
  }
  return std::make_unique<ServingThread>(job_, own_, at::detail::createCPUGenerator(job_.spec.seed + number),
                                         std::move(memory), std::move(stream), std::move(device_generator));
}

void ServingThreads::give_back(std::unique_ptr<ServingThread> thread) {
  std::lock_guard lock(mutex_);
  if (is_open_) {
    free_.push_back(std::move(thread));
  }
}

ServingScope::ServingScope(ServingThreads& threads, int intra_op_threads)
    : threads_(threads),
      thread_(threads.take()),
      intra_op_threads_(at::get_num_threads()),
      autograd_multithreading_(c10::AutogradState::get_tls_state().get_multithreading_enabled()),
      on_stream_(thread_->stream() == nullptr ? nullptr : thread_->stream()->use()),
      context_(std::make_unique<ContextScope>(*thread_)),
      memory_scope_(std::make_unique<MemoryScope>(thread_->memory())) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  if (intra_op_threads_ != intra_op_threads) {
    set_intra_op_threads(intra_op_threads);
  }
  thread_->set_idle(false);
}

ServingScope::~ServingScope() {
  thread_->set_idle(true);
  memory_scope_.reset();
  context_.reset();
  if (at::get_num_threads() != intra_op_threads_) {
    set_intra_op_threads(intra_op_threads_);
  }
  c10::AutogradState::get_tls_state().set_multithreading_enabled(autograd_multithreading_);
  threads_.give_back(std::move(thread_));
}

}  // namespace torchshare
