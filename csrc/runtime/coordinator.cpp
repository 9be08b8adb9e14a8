#include "runtime/coordinator.h"

namespace torchshare {

Coordinator::Coordinator(Clock& clock, Timeline& timeline, Gate& gate, const RuntimeOptions& options)
    : clock_(clock), decisions_(clock, timeline, gate, options, inbox_, changed_) {}

void Coordinator::make_periodic(JobId job, const PeriodicTask& task) {
  const auto lock = lock_up_to_date();
  decisions_.make_periodic(job, task);
}

std::string Coordinator::deadline_problem() const {
  std::lock_guard lock(mutex_);
  return decisions_.deadlines().problem();
}

Coordinator::Registration Coordinator::add(const NewJob& new_job, Slot& slot, JobStatus& status) {
  const auto lock = lock_up_to_date();
  return {*this, decisions_.add(new_job, slot, status)};
}

void Coordinator::withdraw(JobId job) {
  const auto lock = lock_up_to_date();
  decisions_.withdraw(job);
}

void Coordinator::open() {
  const auto lock = lock_up_to_date();
  decisions_.open();
}

std::unique_lock<std::mutex> Coordinator::lock_up_to_date() {
  std::unique_lock lock(mutex_);
  if (catch_up()) {
    inbox_.wake();  // `serve` decides, and does not find the messages in the inbox
  }
  return lock;
}

bool Coordinator::catch_up() {
  const bool any = inbox_.drain([this](const JobMessage& message) { decisions_.apply(message); });
  decisions_.jobs().erase_ended();
  return any;
}

bool Coordinator::wait_to_start(JobId id) {
  auto lock = lock_up_to_date();
  LiveJob* const job = decisions_.jobs().find(id);
  if (job == nullptr) {
    return false;  // it was cancelled before
  }
  decisions_.begin_wait(*job);
  decisions_.decide();
  const auto waits = [job] { return job->wait == LiveJob::Wait::kForStart && !job->start_cancelled; };
  if (waits()) {
    decisions_.delay(*job);  // decides again: the job may start now
  }
  while (waits()) {
    const auto retry_at = job->retry_at;
    wait_for_change(lock, retry_at);
    if (clock_.now() >= retry_at) {
      decisions_.decide();
    }
  }
  return decisions_.end_wait(*job);
}

void Coordinator::wait_for_change(std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds deadline) {
  const std::uint32_t seen = changed_.value();
  lock.unlock();
  clock_.wait(changed_, seen, deadline);
  lock = lock_up_to_date();
}

void Coordinator::cancel_start(JobId job) {
  const auto lock = lock_up_to_date();
  decisions_.cancel_start(job);
}

void Coordinator::cancel_starts() {
  const auto lock = lock_up_to_date();
  decisions_.cancel_starts();
}

void Coordinator::give_up(JobId job) {
  const auto lock = lock_up_to_date();
  decisions_.give_up(job);
}

void Coordinator::follow_orders() {
  const auto lock = lock_up_to_date();
  decisions_.ranks().follow();
}

void Coordinator::keep_orders() {
  const auto lock = lock_up_to_date();
  decisions_.ranks().keep();
}

void Coordinator::obey(const AutoSharing::Order& order) {
  const auto lock = lock_up_to_date();
  decisions_.obey(order);
}

AutoSharing::Orders Coordinator::take_orders() {
  const auto lock = lock_up_to_date();
  return decisions_.ranks().take();
}

void Coordinator::send(const JobMessage& message) {
  if (!inbox_.put(message)) {
    const auto lock = lock_up_to_date();
    decisions_.apply(message);
  }
  inbox_.announce(message);
}

void Coordinator::serve() {
  inbox_.serve(clock_, [this] { return serve_once(); });
}

std::chrono::nanoseconds Coordinator::serve_once() {
  std::lock_guard lock(mutex_);
  catch_up();
  return decisions_.serve_once();
}

std::vector<std::string> Coordinator::names() const {
  std::lock_guard lock(mutex_);
  return decisions_.jobs().names();
}

std::size_t Coordinator::size() const {
  std::lock_guard lock(mutex_);
  return decisions_.jobs().live().size();
}

std::optional<BoundStats> Coordinator::bound(JobId job) const {
  std::lock_guard lock(mutex_);
  return decisions_.bounds().stats(job);
}

std::optional<LatencyStats> Coordinator::latency(JobId job) const {
  std::lock_guard lock(mutex_);
  return decisions_.latencies().stats(job);
}

bool Coordinator::wait_all(std::chrono::nanoseconds deadline) {
  auto lock = lock_up_to_date();
  while (!decisions_.jobs().all_ended()) {
    if (clock_.now() >= deadline) {
      return false;
    }
    wait_for_change(lock, deadline);
  }
  return true;
}

}  // namespace torchshare
