#include "device/cpu/idle_priority.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace torchshare {
namespace {

/// Sets the scheduling policy of one thread; 0: the calling thread.
bool set_policy(int thread, int policy, const sched_param& param = {}) {
  return sched_setscheduler(thread, policy, &param) == 0;
}

std::string name_of(const std::string& thread) {
  std::ifstream file("/proc/self/task/" + thread + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

/// Visits the threads of idle priority with this thread's name: its workers inherited both.
template <class Visit>
void for_each_worker(int thread, Visit visit) {
  const std::string name = name_of(std::to_string(thread));
  std::error_code ended;  // a thread may end in between
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", ended)) {
    const std::string text = entry.path().filename();
    int worker = 0;
    std::from_chars(text.data(), text.data() + text.size(), worker);
    if (worker != thread && sched_getscheduler(worker) == SCHED_IDLE && name_of(text) == name) {
      visit(worker);
    }
  }
}

/// Makes OpenMP start the workers of the calling thread, with an op that is large enough to be parallelized: workers
/// inherit the current priority, and the thread may be raised later.
void make_workers() {
  if (at::get_num_threads() > 1) {
    at::empty({2 * at::internal::GRAIN_SIZE}, at::kByte).fill_(0);
  }
}

constexpr int kForGood = 1 << 16;  // never lowered again

}  // namespace

void IdlePriority::enter() {
  {
    std::lock_guard lock(mutex_);
    former_policy_ = sched_getscheduler(0);
    sched_getparam(0, &former_param_);
    pthread_getcpuclockid(pthread_self(), &clock_);
    thread_.store(gettid(), std::memory_order_release);
  }
  if (!lowers_) {
    return;
  }
  if (!apply(0)) {  // without the lock, as in `change`
    TORCH_WARN("torchshare: cannot lower this thread to SCHED_IDLE (", std::strerror(errno),
               "); it keeps its priority");
  }
  make_workers();
}

void IdlePriority::leave() {
  if (lowers_) {
    set_policy(0, former_policy_, former_param_);  // fails where may_raise_priority() is false; the thread ends anyway
  }
  std::lock_guard lock(mutex_);
  thread_.store(0, std::memory_order_release);
}

void IdlePriority::change(int raises) {
  if (!lowers_ || !may_raise_priority()) {
    return;
  }
  if (thread_.load(std::memory_order_acquire) == gettid()) {
    raises_ += raises;
    apply(0);  // without the lock, which it would hold while it has idle priority
    return;
  }
  std::lock_guard lock(mutex_);
  raises_ += raises;
  if (const int thread = thread_.load(std::memory_order_acquire); thread != 0) {
    apply(thread);
  }
}

/// Applies the priority given by the number of raises, and again if that number has changed meanwhile.
bool IdlePriority::apply(int thread) {
  bool raised = false;
  bool succeeds = false;
  do {
    raised = raises_.load() > 0;
    succeeds = raised ? set_policy(thread, former_policy_, former_param_) : set_policy(thread, SCHED_IDLE);
  } while (raised != (raises_.load() > 0));
  return succeeds;
}

void IdlePriority::raise() {
  change(1);
}

void IdlePriority::lower() {
  change(-1);
}

void IdlePriority::raise_for_good() {
  if (!lowers_ || !may_raise_priority()) {
    return;  // without the lock, which the thread may hold while it leaves with idle priority
  }
  change(kForGood);
  std::lock_guard lock(mutex_);
  if (const int thread = thread_.load(std::memory_order_acquire); thread != 0) {
    for_each_worker(thread, [this](int worker) { set_policy(worker, former_policy_, former_param_); });
  }
}

std::optional<std::chrono::nanoseconds> IdlePriority::used() const {
  timespec time{};
  if (thread_.load(std::memory_order_acquire) == 0 || clock_gettime(clock_, &time) != 0) {
    return std::nullopt;
  }
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

bool may_raise_priority() {
  static const bool may = [] {
    bool succeeds = false;
    std::thread([&] {
      const int former = sched_getscheduler(0);
      succeeds = set_policy(0, SCHED_IDLE) && set_policy(0, former);
    }).join();
    return succeeds;
  }();
  return may;
}

}  // namespace torchshare
