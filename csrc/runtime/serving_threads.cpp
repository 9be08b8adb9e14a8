#include "runtime/serving_threads.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace torchshare {

ServingThread::ServingThread(const JobParts& job, OpContext& own, at::Generator generator, JobResources resources)
    : OpContext(own.slot(), std::move(generator)),
      job_(job),
      own_(own),
      language_(job.language.for_thread()),
      member_(job.runtime.gate, slot_, resources.stream),
      priority_(job.runtime.device->lent_thread_priority(job.spec.priority, job.runtime.options.device_priority)),
      watched_(job.runtime.stall_watch, slot_, *priority_) {
  slot_.interrupts.fetch_or(kCounted);
  slot_.idle.store(true);
  memory_ = std::move(resources.memory);
  stream_ = std::move(resources.stream);
  device_generator_ = std::move(resources.device_generator);
}

void ServingThread::handle_interrupts() {
  own_.begin_served_op();
  lower_again(slot_, *priority_);
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

void ServingThreads::open(JobResources resources) {
  std::lock_guard lock(mutex_);
  resources_ = std::move(resources);
}

void ServingThreads::close() {
  std::vector<std::unique_ptr<ServingThread>> free;  // leave the gate without the lock
  std::lock_guard lock(mutex_);
  resources_.reset();
  free.swap(free_);
}

JobResources ServingThreads::resources() const {
  std::lock_guard lock(mutex_);
  return resources_.value_or(JobResources{});
}

std::unique_ptr<ServingThread> ServingThreads::take() {
  std::unique_lock lock(mutex_);
  if (!resources_) {
    throw std::runtime_error(fmt::format("job '{}' answers no requests: it does not run", job_.spec.name));
  }
  if (!free_.empty()) {
    auto thread = std::move(free_.back());
    free_.pop_back();
    in_use_.push_back(thread.get());
    return thread;
  }
  JobResources resources = *resources_;
  const std::uint64_t seed = job_.spec.seed + ++made_;
  lock.unlock();  // it joins the gate
  auto thread = std::make_unique<ServingThread>(job_, own_, at::detail::createCPUGenerator(seed), std::move(resources));
  lock.lock();
  in_use_.push_back(thread.get());
  return thread;
}

void ServingThreads::give_back(std::unique_ptr<ServingThread> thread) {
  std::lock_guard lock(mutex_);
  std::erase(in_use_, thread.get());
  if (resources_) {
    free_.push_back(std::move(thread));
  }
}

void ServingThreads::raise_for_good() {
  std::lock_guard lock(mutex_);
  for (ServingThread* const thread : in_use_) {
    thread->priority().raise_for_good();
  }
}

ServingScope::InUse::InUse(ServingThreads& from) : threads(from), thread(from.take()) {
  thread->set_answering(true);
}

ServingScope::InUse::~InUse() {
  thread->set_answering(false);
  threads.give_back(std::move(thread));
}

ServingScope::IntraOpThreads::IntraOpThreads(int count) : former(at::get_num_threads()) {
  change_intra_op_threads(count);
}

ServingScope::IntraOpThreads::~IntraOpThreads() {
  change_intra_op_threads(former);
}

ServingScope::ServingScope(ServingThreads& threads, int intra_op_threads)
    : in_use_(threads),
      intra_op_threads_(intra_op_threads),
      priority_(current_context == nullptr ? std::optional<PriorityScope>(std::in_place, in_use_.thread->priority())
                                           : std::nullopt),
      on_stream_(in_use_.thread->use_stream()),
      context_(*in_use_.thread),
      memory_(in_use_.thread->memory()) {}

}  // namespace torchshare
