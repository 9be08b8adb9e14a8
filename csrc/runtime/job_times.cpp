#include "runtime/job_times.h"

namespace torchshare {
namespace {

void add_to(std::atomic<std::chrono::nanoseconds>& total, std::chrono::nanoseconds amount) {
  total.store(total.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);  // one writer
}

/// The thread's count, or the last one read if the thread has ended, so that a count never decreases.
std::chrono::nanoseconds counted(std::optional<std::chrono::nanoseconds> now,
                                 std::atomic<std::chrono::nanoseconds>& last) {
  if (now) {
    last.store(*now);
  }
  return last.load();
}

}  // namespace

void JobTimes::read_thread() {
  counted(job_.priority.used(), cpu_);
  counted(job_.priority.waited(), core_wait_);
}

void JobTimes::end_step(std::int64_t memory) {
  record_sub_batches();
  record(EventKind::kStep, step_begin_, all_steps());
  if (memory > 0) {
    record(EventKind::kMemory, step_begin_, static_cast<std::uint64_t>(memory));
  }
}

void JobTimes::record_sub_batches() {
  for (const auto& [begin, end] : exchange_sub_batches({})) {
    const std::uint64_t number = sub_batches_.fetch_add(1);
    log_->record(
        {std::chrono::nanoseconds(begin), std::chrono::nanoseconds(end), job_.id(), EventKind::kSubBatch, number, {}});
  }
}

void JobTimes::end_input(std::chrono::nanoseconds now) {
  add_to(input_, now - input_begin_);
  record(EventKind::kInput, input_begin_, all_steps());
}

void JobTimes::record_request(std::chrono::nanoseconds arrived, std::chrono::nanoseconds now,
                              std::chrono::nanoseconds queued) {
  log_->record({arrived, now, job_.id(), EventKind::kRequest, static_cast<std::uint64_t>(queued.count()), {}});
}

bool JobTimes::begin_wait(std::string_view reason, std::chrono::nanoseconds now) {
  if (++waits_ > 1) {
    return false;
  }
  wait_reason_ = reason;
  wait_begin_ = now;
  return true;
}

bool JobTimes::end_wait() {
  if (--waits_ > 0) {
    return false;
  }
  add_wait(wait_begin_, wait_reason_);
  return true;
}

void JobTimes::add_wait(std::chrono::nanoseconds begin, std::string_view reason) {
  const auto waited = job_.now() - begin;
  add_to(waited_, waited);
  if (reason == kAtGate) {
    add_to(at_gate_, waited);
  }
  record(EventKind::kWait, begin, 0, reason);
}

void JobTimes::set(JobStats& stats) const {
  const auto [began, ended] = span();
  const auto until = ended.count() != 0 ? ended : job_.now();
  stats.steps = status_.steps.load();
  stats.earlier_steps = status_.earlier_steps.load();
  stats.sub_batches = sub_batches_.load();
  stats.waited = waited_.load();
  stats.input = input_.load();
  stats.cpu = counted(job_.priority.used(), cpu_);
  stats.core_wait = counted(job_.priority.waited(), core_wait_);
  stats.ran = began.count() != 0 ? until - began : began;
}

void JobTimes::record(EventKind kind, std::chrono::nanoseconds begin, std::uint64_t number, std::string_view detail) {
  log_->record({begin, job_.now(), job_.id(), kind, number, std::string(detail)});
}

}  // namespace torchshare
